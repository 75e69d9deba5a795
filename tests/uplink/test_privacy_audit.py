"""An audit: planted clients are looked for in the released model, and found less often than epsilon allows."""

import jax
import numpy as np
import pytest
import scipy.stats
from jax.flatten_util import ravel_pytree

from fedjax_het import data, models, privacy
from fedjax_het.algorithm import Sent, Stage
from fedjax_het.engine.round.participation import poisson
from fedjax_het.uplink import gaussian_mechanism
from tests.harness import compose, map_rows, run

CANARIES, ROUNDS, PROBABILITY, DELTA = 1000, 8, 0.5, 1e-5


def send_canary(update, view):
    """Client i sends a large number at coordinate i, and nothing else."""
    flat, restore = ravel_pytree(update)
    return Sent(restore(1e3 * jax.nn.one_hot(view.client, len(flat), dtype=flat.dtype)))


def empirical_epsilon(noise_multiplier: float, seed: int) -> float:
    """A lower bound on epsilon, with 95 % confidence, from who can be found in the model.

    Half of the clients, at random, are there; the others have no examples. Each is guessed to have been there if its
    coordinate has moved by more than half of what clients that take part as often as is usual have moved theirs.
    """
    federation = data.toy(num_clients=CANARIES, image=(6, 6, 1), examples_per_client=(2, 3))
    is_there = np.random.default_rng(seed).random(CANARIES) < 0.5
    present = map_rows(federation.data, lambda rows: rows._replace(count=rows.count * is_there))
    round = compose(
        "fedavg",
        num_clients=CANARIES,
        network=models.mlp(num_classes=3, hidden=(64,), norm="none"),
        prepare=federation.prepare,
        participation=poisson(PROBABILITY),
        options={"weighting": "uniform", "batch_size": 4},
        change={"uplink": (Stage(send=send_canary), gaussian_mechanism(1.0, noise_multiplier))},
    )
    before, after = (run(round, rounds, present, seed)[0].server.shared["params"] for rounds in (0, ROUNDS))
    moved = (ravel_pytree(after)[0] - ravel_pytree(before)[0])[:CANARIES]
    usual = ROUNDS * PROBABILITY / (PROBABILITY * CANARIES)
    is_guessed = np.asarray(moved) > usual / 2
    found, missed = np.sum(is_guessed & is_there), np.sum(~is_guessed & is_there)
    wrong, right = np.sum(is_guessed & ~is_there), np.sum(~is_guessed & ~is_there)
    min_found = scipy.stats.beta.ppf(0.025, found, missed + 1) if found else 0.0
    max_wrong = scipy.stats.beta.ppf(0.975, wrong + 1, right) if right else 1.0
    return float(np.log(max(min_found - DELTA, 1e-9) / max_wrong))


@pytest.mark.slow
def test_planted_clients_are_found_less_often_than_epsilon_allows_and_more_without_noise():
    slots = poisson(PROBABILITY).size(CANARIES)
    z = privacy.noise_multiplier(2.0, privacy.PoissonSampling(PROBABILITY, CANARIES, slots), ROUNDS, DELTA)
    assert empirical_epsilon(z, seed=1) < 2.0
    assert empirical_epsilon(z / 10, seed=1) > 2.0  # a tenth of the noise does not keep the promise
    assert empirical_epsilon(0.0, seed=1) > 2.0
