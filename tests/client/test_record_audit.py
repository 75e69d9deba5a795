"""An audit: planted examples are looked for in clients' updates, and found less often than their epsilon allows."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import privacy
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fedavg
from fedjax_het.engine.round.program import make_round
from fedjax_het.privacy import RecordPrivacy
from tests.audits import lower_bound
from tests.golden.replay import client_data, vector_model

SIZES, BATCH, STEPS, ROUNDS, DELTA = (300, 1000, 1500), 150, 4, 3, 1e-5


def canary(forward):
    """Example i, if it is there, has a large gradient at coordinate i, and no other."""
    number, is_there = forward.batch.inputs[..., 0].astype(int), forward.batch.inputs[..., 1]
    return 1e3 * jnp.mean(is_there * forward.batch.mask * forward.params["w"][number])


def empirical_epsilons(noise: tuple[float, ...] | float, seed: int = 1) -> list[float]:
    """A lower bound on the epsilon of each client from the examples that can be found in the sum of its updates.

    Half of the examples, at random, are there; the others have no gradient. Each is guessed to have been there if its
    coordinate has moved by more than half of what examples that are drawn as often as is usual have moved theirs.
    """
    total = sum(SIZES)
    is_there = np.random.default_rng(seed).random(total) < 0.5
    data = client_data(np.stack([np.arange(total), is_there], axis=1).astype(np.float32), np.zeros(total), SIZES)
    algorithm = fedavg(batch_size=BATCH, steps=STEPS, learning_rate=1.0)
    algorithm = replace(algorithm, objective=(canary,), record_privacy=RecordPrivacy(1.0, noise, chunk_size=64))
    round, key = make_round(algorithm, vector_model(np.zeros(total, np.float32)), len(SIZES)), make_key(seed)
    step, state, moved = jax.jit(round.step_with_messages), round.init(key, data), 0.0
    for _ in range(ROUNDS):
        state, _, messages = step(state, data, key)
        moved = moved - np.asarray(messages.uploads.update["params"]["w"])
    bounds = []
    for client, (end, size) in enumerate(zip(np.cumsum(SIZES), SIZES, strict=True)):
        own = slice(end - size, end)
        usual = STEPS * ROUNDS / size  # drawn in a share of the steps, each with that share of the examples
        bounds.append(lower_bound(moved[client, own] > usual / 2, is_there[own], DELTA))
    return bounds


@pytest.mark.slow
def test_planted_examples_are_found_less_often_than_epsilon_allows_and_more_with_less_noise():
    steps = [STEPS * ROUNDS] * len(SIZES)
    noise = np.array(privacy.record_noise(RecordPrivacy(1.0), 2.0, BATCH, SIZES, steps, DELTA))
    for share in (1.0, 2.0):
        given = tuple((share * noise).tolist())
        epsilons = privacy.record_epsilons(RecordPrivacy(1.0, given), BATCH, SIZES, steps, DELTA)
        bounds = empirical_epsilons(given)
        assert np.all(np.array(bounds) < epsilons)
    assert max(empirical_epsilons(tuple((noise / 10).tolist()))) > 2.0  # a tenth does not keep the promise
    assert min(empirical_epsilons(0.0)) > 2.0
