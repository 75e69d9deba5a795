"""Laws of Per-FedAvg, FedALA, Fed-RoD, FedDBE, FedAS, FedCP and GPFL."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.client.objectives._conditional import mean_discrepancy
from fedjax_het.client.objectives._label_skew import balanced_losses
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError
from fedjax_het.models._conditional import apply_valve, gate_shares
from tests.harness import algorithm, compose, difference, federation, is_equal, run

pytestmark = pytest.mark.extended
RNG = np.random.default_rng(0)


@functools.cache
def train(name: str, rounds: int = 2, cohort: int = 5, **options):
    """The state after some rounds with this number of clients each."""
    round = compose(name, norm="none", participation=participation.uniform(cohort), options=options)
    return run(round, rounds=rounds)[0]


def start(name: str, **options):
    return compose(name, norm="none", options=options).init(make_key(0), federation().data)


def of_model(state):
    """The shared parameters of the network itself, body and head."""
    added = ("valve", "embedding", "gate")
    return {name: leaves for name, leaves in state.server.shared["params"].items() if name not in added}


@pytest.mark.parametrize("name", ["fedala", "fedrod", "feddbe", "fedas", "fedcp", "gpfl"])
def test_what_a_client_keeps_rests_where_nobody_asks(name):
    round = compose(name, norm="none", participation=participation.uniform(2))
    before = start(name)
    after, metrics = jax.jit(round.step)(before, federation().data, make_key(0))
    asked = set(metrics.cohort.tolist())
    for client in range(5):
        own = [tree.take((state.clients.personal, state.clients.memory), client) for state in (before, after)]
        assert is_equal(*own) == (client not in asked)


# ---- Per-FedAvg ------------------------------------------------------------------------------------------------------
def test_perfedavg_without_an_inner_step_is_fedavg_on_its_second_batch():
    """With batches of all examples and one step, half of them are the second batch."""
    first, exact = (train("perfedavg", 1, alpha=0.0, hessian=hessian, epochs=1) for hessian in ("none", "exact"))
    assert difference(start("perfedavg").server.shared, first.server.shared) > 1e-4
    assert difference(first.server.shared, exact.server.shared) > 0  # three parts instead of two


@pytest.mark.slow
def test_perfedavg_without_a_rate_rests_and_its_hessians_agree():
    assert is_equal(start("perfedavg").server.shared, train("perfedavg", learning_rate=0.0).server.shared)
    exact, close = (
        train("perfedavg", 1, hessian=hessian, alpha=0.1).server.shared for hessian in ("exact", "difference")
    )
    begin = start("perfedavg").server.shared
    assert difference(tree.subtract(exact, begin), tree.subtract(close, begin)) < 1e-2


@pytest.mark.slow
# ---- FedALA ----------------------------------------------------------------------------------------------------------
def test_fedala_without_a_rate_is_fedavg_and_its_weights_stay_in_0_and_1():
    assert difference(train("fedavg", 3).server.shared, train("fedala", 3, rate=0.0).server.shared) < 1e-5
    state = train("fedala", 3, rate=30.0)
    weights = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.clients.memory["mixture"].weights)])
    assert np.all((weights >= 0) & (weights <= 1)) and np.ptp(weights) > 0.5
    assert np.all(state.clients.memory["mixture"].has_run)
    assert np.all(train("fedala", 1).clients.memory["mixture"].has_run == False)  # noqa: E712


def test_fedala_learns_nothing_while_the_received_model_is_the_own_one():
    round = compose("fedala", norm="none", num_clients=1)
    data = federation(1).data
    state, _ = run(round, data=data)
    assert all(np.all(leaf == 1) for leaf in jax.tree.leaves(state.clients.memory["mixture"].weights))


# ---- Fed-RoD ---------------------------------------------------------------------------------------------------------
def test_fedrods_server_does_not_depend_on_personal_heads():
    copied, zero = (train("fedrod", head_start=kind) for kind in ("copy", "zero"))
    assert is_equal(copied.server.shared, zero.server.shared)
    assert difference(copied.clients.personal, zero.clients.personal) > 1e-3


def test_fedrod_without_gamma_has_fedavgs_server():
    assert difference(train("fedavg").server.shared, train("fedrod", gamma=0.0).server.shared) < 1e-5


def test_balanced_softmax_depends_on_the_shares_of_counts_alone():
    logits, labels = jnp.asarray(RNG.normal(size=(5, 3))), jnp.array([0, 1, 1, 0, 1])
    for missing, counts in (("once", [2, 3, 4]), ("excluded", [2, 3, 0])):
        counts = jnp.array(counts, float)
        losses = [balanced_losses(logits, labels, factor * counts, 1.0, missing) for factor in (1, 5)]
        np.testing.assert_allclose(*losses, rtol=1e-4)
        assert np.all(np.isfinite(losses))


# ---- FedDBE ----------------------------------------------------------------------------------------------------------
def test_feddbe_keeps_no_mean_without_kappa_and_refuses_options_of_it():
    assert not start("feddbe", kappa=0.0).server.published
    with pytest.raises(InputError, match=r"^consensus: has no effect with kappa=0"):
        algorithm("feddbe", kappa=0.0, consensus="exact")


def test_feddbe_counts_each_client_once():
    states = [train("feddbe", rounds, 2) for rounds in (1, 4)]
    count = np.asarray(federation().data.train.count)
    for state in states:
        has_trained = np.asarray(state.clients.rounds) > 0
        assert state.server.published["consensus"]["weight"] == count[has_trained].sum()


def test_feddbes_means_are_the_same_whatever_its_clients_learn_later():
    first, last = (train("feddbe", rounds).server.published["consensus"] for rounds in (1, 3))
    assert is_equal(first, last)


@pytest.mark.slow
# ---- FedAS -----------------------------------------------------------------------------------------------------------
def test_fedas_without_alignment_and_traces_is_fedper():
    plain = train("fedas", align=False, weighting="samples")
    assert difference(train("fedper").server.shared, plain.server.shared) < 1e-6
    still = train("fedas", 1, alignment_rate=0.0)
    assert difference(train("fedas", 1, align=False).server.shared, still.server.shared) < 1e-6


def test_fedas_refuses_options_without_effect():
    with pytest.raises(InputError, match=r"^alignment_batch: has no effect with align=False"):
        algorithm("fedas", align=False, alignment_batch=8)
    with pytest.raises(InputError, match=r"^per: has no effect without weighting='trace'"):
        algorithm("fedas", weighting="samples", per="example")


# ---- FedCP and GPFL --------------------------------------------------------------------------------------------------
def test_shares_of_a_gate_sum_to_1():
    gate = {name: jnp.asarray(RNG.normal(size=size)) for name, size in
            (("kernel", (4, 8)), ("bias", 8), ("scale", 8), ("shift", 8))}  # fmt: skip
    shares = gate_shares(gate, jnp.asarray(RNG.normal(size=4)), jnp.asarray(RNG.normal(size=(3, 4))), 0.0, 1.0)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-6)


def test_the_discrepancy_of_equal_representations_is_0_and_padding_does_not_count():
    x, y = (jnp.asarray(RNG.normal(size=(4, 3))) for _ in range(2))
    assert abs(mean_discrepancy(x, x, jnp.ones(4))) < 1e-6 < mean_discrepancy(x, y, jnp.ones(4))
    mask = jnp.array([1.0, 1, 0, 0])
    np.testing.assert_allclose(mean_discrepancy(x, y, mask), mean_discrepancy(x[:2], y[:2], jnp.ones(2)), rtol=1e-5)


def test_fedcps_generic_head_moves_by_the_personal_heads_alone():
    state, before = train("fedcp", 1, cohort=1), start("fedcp")
    (client,) = np.flatnonzero(state.clients.rounds)
    own = tree.take(state.clients.personal, int(client))["params"]["personal_head"]
    head = before.server.shared["params"]["classifier"]
    merged = jax.tree.map(lambda a, b: (a + b) / 2, own, head)
    assert difference(merged, state.server.shared["params"]["classifier"]) < 1e-5


def test_a_valve_gives_no_negative_features():
    layer = {name: jnp.asarray(RNG.normal(size=size)) for name, size in
             (("kernel", (4, 4)), ("bias", 4), ("scale", 4), ("shift", 4))}  # fmt: skip
    out = apply_valve({"gamma": layer, "beta": layer}, jnp.asarray(RNG.normal(size=(9, 4))), jnp.ones(4))
    assert np.all(out >= 0)


@pytest.mark.slow
def test_gpfls_heads_are_never_sent():
    state = train("gpfl")
    assert "classifier" not in of_model(state)
