"""An audit: planted clients are looked for in the released model, and found less often than epsilon allows."""

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from fedjax_het import data, models, privacy
from fedjax_het.algorithm import Sent, Stage
from fedjax_het.engine.round.participation import Participation, cyclic, poisson
from fedjax_het.uplink import gaussian_mechanism, matrix_mechanism
from tests.audits import lower_bound
from tests.harness import compose, map_rows, run

CANARIES, ROUNDS, PROBABILITY, DELTA = 1000, 8, 0.5, 1e-5


def send_canary(update, view):
    """Client i sends a large number at coordinate i, and nothing else."""
    flat, restore = ravel_pytree(update)
    return Sent(restore(1e3 * jax.nn.one_hot(view.client, len(flat), dtype=flat.dtype)))


def empirical_epsilon(stage: Stage, participation: Participation, seed: int = 1) -> float:
    """A lower bound on epsilon from who can be found in the model.

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
        participation=participation,
        options={"weighting": "uniform", "batch_size": 4},
        change={"uplink": (Stage(send=send_canary), stage)},
    )
    before, after = (run(round, rounds, present, seed)[0].server.shared["params"] for rounds in (0, ROUNDS))
    moved = np.asarray(ravel_pytree(after)[0] - ravel_pytree(before)[0])[:CANARIES]
    usual = ROUNDS / CANARIES  # each takes part in a share of the rounds, with that share of the clients
    return lower_bound(moved > usual / 2, is_there, DELTA)


@pytest.mark.slow
def test_planted_clients_are_found_less_often_than_epsilon_allows_and_more_without_noise():
    sampling = poisson(PROBABILITY)
    accounted = privacy.PoissonSampling(PROBABILITY, CANARIES, sampling.size(CANARIES))
    z = privacy.noise_multiplier(2.0, accounted, ROUNDS, DELTA)
    assert empirical_epsilon(gaussian_mechanism(1.0, z), sampling) < 2.0
    assert empirical_epsilon(gaussian_mechanism(1.0, z / 10), sampling) > 2.0  # a tenth does not keep the promise
    assert empirical_epsilon(gaussian_mechanism(1.0, 0.0), sampling) > 2.0


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["banded", "tree"])
def test_the_same_of_correlated_noise_with_every_client_in_every_second_round(strategy):
    z = privacy.noise_multiplier(2.0, privacy.PoissonSampling(1.0), 1, DELTA)
    options = {"rounds": ROUNDS, "separation": 2, "strategy": strategy}
    assert empirical_epsilon(matrix_mechanism(1.0, z, **options), cyclic(2)) < 2.0
    assert empirical_epsilon(matrix_mechanism(1.0, z / 10, **options), cyclic(2)) > 2.0
