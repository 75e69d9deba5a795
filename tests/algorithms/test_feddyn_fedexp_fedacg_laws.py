"""Laws of FedDyn, FedExP and FedACG, and their relations to FedAvg and FedProx."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fedacg, feddyn, fedexp
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError
from fedjax_het.types import Rows
from tests.harness import algorithm, compose, difference, federation, is_equal, map_rows, run, train

pytestmark = pytest.mark.extended


def messages(round, rounds: int):
    """The states before and after each round, and the messages of each round."""
    data, key = federation().data, make_key(0)
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
    assert difference(tree.scale(1 + 2 / 5, moved), first) < 1e-4  # neither 2 nor 1
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


def test_fedexp_with_equal_updates_is_fedavg():
    alike = map_rows(
        federation().data, lambda rows: Rows(np.repeat(rows.index[:1], 5, axis=0), np.repeat(rows.count[:1], 5))
    )
    theirs, ours = (run(compose(name, norm="none"), rounds=2, data=alike)[0] for name in ("fedavg", "fedexp"))
    assert difference(theirs.server.shared, ours.server.shared) < 1e-6
    assert float(ours.server.aggregator[1].rate) == 1


def test_fedexp_steps_along_fedavgs_direction_at_least_as_far():
    states, told = messages(compose("fedexp", norm="none", options={"epsilon": 0.0}), 1)
    updates = told[0][1].uploads.update["params"]
    counts = np.asarray(federation().data.train.count, np.float32)
    mean = tree.weighted_sum(updates, jnp.asarray(counts / counts.sum()))
    square = sum(
        float(n / counts.sum()) * float(tree.squared_norm(tree.take(updates, i))) for i, n in enumerate(counts)
    )
    rate = max(1.0, square / (2 * float(tree.squared_norm(mean))))
    step = tree.subtract(states[1].server.shared["params"], states[0].server.shared["params"])
    assert difference(tree.scale(rate, mean), step) < 1e-4
    assert states[1].server.aggregator[1].rate == pytest.approx(rate, rel=1e-4)


def test_fedexp_with_a_large_epsilon_is_fedavg_tested_at_the_mean_of_two_models():
    state = run(compose("fedexp", norm="none", options={"epsilon": 1e9}), rounds=2)[0]
    first, second = train("fedavg", rounds=1), train("fedavg", rounds=2)
    assert difference(second, state.server.shared) < 1e-6
    tested = algorithm("fedexp").evaluated(state.server)
    assert difference(tree.scale(0.5, tree.add(first, second)), tested) < 1e-6


def test_fedacg_is_fedprox_with_a_nesterov_server():
    ours = run(compose("fedacg", norm="none", options={"beta": 0.1}), rounds=3)[0].server
    nesterov = {"server_optimizer": optax.sgd(1.0, momentum=0.85, nesterov=True)}
    options = {"mu": 0.1, "weighting": "uniform"}
    theirs = run(compose("fedprox", norm="none", options=options, change=nesterov), rounds=3)[0].server
    assert difference(theirs.shared, ours.shared) < 1e-5
    tested = fedacg().evaluated(ours)
    ahead = tree.scale(-0.85, theirs.optimizer[0].trace)
    assert difference(tree.subtract(theirs.shared["params"], ahead), tested["params"]) < 1e-5


def test_fedacg_without_momentum_and_pull_is_fedavg():
    state = run(compose("fedacg", norm="none", options={"lam": 0.0, "beta": 0.0}), rounds=2)[0]
    assert difference(train("fedavg", weighting="uniform"), state.server.shared) < 1e-6
    assert is_equal(state.server.shared, fedacg().evaluated(state.server))


def test_fedacg_with_another_server_optimizer_needs_another_model_to_test():
    state = compose("fedacg", norm="none", change={"server_optimizer": optax.adam(0.1)})
    server = state.init(make_key(0), federation().data).server
    with pytest.raises(InputError, match=r"^server_optimizer: the evaluated model"):
        fedacg().evaluated(server)


@pytest.mark.parametrize(
    ("build", "options"),
    [(fedexp, {"epsilon": -1.0}), (fedexp, {"epsilon_decay": 0.0}), (fedacg, {"lam": 1.0}), (fedacg, {"clip": 0.0})],
)
def test_settings_out_of_range_are_refused(build, options):
    with pytest.raises(InputError, match=next(iter(options))):
        build(**options)
