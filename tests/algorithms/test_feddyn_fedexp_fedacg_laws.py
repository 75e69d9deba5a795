"""Laws of FedDyn, FedExP and FedACG, and their relations to FedAvg and FedProx."""

import jax
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het.algorithms import feddyn
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError
from tests.harness import compose, difference, federation, is_equal


def messages(round, rounds: int):
    """The states before and after each round, and the messages of each round."""
    data, key = federation().data, jax.random.key(0)
    step, states, messages = jax.jit(round.step_with_messages), [round.init(key, data)], []
    for _ in range(rounds):
        state, metrics, told = step(states[-1], data, key)
        states.append(state)
        messages.append((metrics.cohort, told))
    return states, messages


def test_feddyn_keeps_the_mean_of_all_clients_displacements():
    states, told = messages(compose("feddyn", norm="none", participation=participation.uniform(2)), 3)
    moved = jax.tree.map(lambda u: np.mean(u, axis=0), told[0][1].uploads.update)
    first = tree.subtract(states[1].server.shared, states[0].server.shared)
    assert difference(tree.scale(1 + 2 / 5, moved), first) < 1e-4  # and not 2, nor 1
    for before, after, (cohort, _) in zip(states, states[1:], told, strict=False):
        displacements = after.clients.memory["displacement"]
        assert difference(jax.tree.map(lambda h: h.mean(axis=0), displacements), after.server.aggregator) < 1e-5
        for client in set(range(5)) - set(cohort.tolist()):
            old = tree.take(before.clients.memory["displacement"], client)
            assert is_equal(old, tree.take(displacements, client))


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"clip": 0.0}, {"mean_examples": 0.0}])
def test_feddyn_refuses_settings_out_of_range(options):
    with pytest.raises(InputError, match=next(iter(options))):
        feddyn(**options)
