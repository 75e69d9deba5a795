"""Conformance of every algorithm with unusual clients: few, absent, empty, identical, unmoved, not finite."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import LocalUpdate
from fedjax_het.engine.round import participation
from fedjax_het.engine.round.participation import Participation
from fedjax_het.types import Rows
from tests.harness import (
    PRODUCTS,
    ROUNDING,
    algorithm,
    all_quick_for,
    compose,
    difference,
    federation_of,
    is_equal,
    map_rows,
    params_of,
    reference_run,
    rounding_tolerance,
    run,
)


@all_quick_for("fedld")
def test_clients_that_drop_out_are_not_counted(name):
    round = compose(name, participation=participation.bernoulli(0.5, among=participation.uniform(4)))
    state, metrics = run(round, rounds=6)
    reported = [int(m.num_reporting) for m in metrics]
    assert min(reported) < 4
    assert sum(reported) == int(state.counters.reports) == int(state.clients.rounds.sum())
    assert bool(tree.is_finite(state))


@all_quick_for("fedld")
def test_a_round_without_reports_does_not_change_the_state(name):
    round = compose(name, participation=participation.bernoulli(1e-30))  # no client, in practice
    before = round.init(make_key(0), federation_of(name).data)
    state, metrics = run(round, rounds=2)
    assert is_equal(before.server._replace(round=state.server.round), state.server)
    assert is_equal(before.clients, state.clients)
    assert np.isnan(metrics[-1].loss)


@pytest.mark.extended
@all_quick_for("fedld")
def test_training_with_one_client_stays_finite(name):
    alone = map_rows(federation_of(name).data, lambda rows: Rows(rows.index[-1:], rows.count[-1:]))
    state, _ = run(compose(name, num_clients=1), rounds=2, data=alone)
    assert bool(tree.is_finite(state))


@all_quick_for("fedld")
def test_a_client_without_examples_does_not_change_the_result(name):
    empty = map_rows(
        federation_of(name).data,
        lambda rows: Rows(np.concatenate([rows.index, rows.index[:1]]), np.append(rows.count, 0).astype(np.int32)),
    )
    options = {"topology": "complete"} if algorithm(name).mixing else {}  # in other graphs the client leaves a gap
    state, metrics = run(compose(name, num_clients=6, num_training=5, options=options), data=empty)
    assert int(metrics[-1].num_reporting) == 5
    assert int(state.clients.rounds[5]) == 0
    assert bool(tree.is_finite(state))
    without, _ = run(compose(name, options=options)) if options else reference_run(name)
    assert difference(without.server.shared, state.server.shared) < rounding_tolerance(name)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedbn", "fedga", "fedld", "fedpac"])
def test_a_round_with_a_nonfinite_aggregate_is_rejected(name):
    """All updates are finite; the server's step overflows from the second round on."""
    overflowing = optax.sgd(lambda count: jnp.where(count < 1, 1.0, jnp.inf))
    round = compose(name, change={"server_optimizer": overflowing})
    first, _ = run(round, rounds=1)
    state, metrics = run(round, rounds=3)
    assert is_equal(first.server._replace(round=state.server.round), state.server)
    assert is_equal(first.clients, state.clients)
    assert bool(tree.is_finite(state))
    assert [bool(m.is_rejected) for m in metrics] == [False, True, True]
    assert [int(m.num_reporting) for m in metrics] == [5, 0, 0]
    assert (int(state.counters.reports), int(state.counters.nonfinite)) == (5, 10)


@all_quick_for("fedld")
def test_nan_of_one_client_reaches_no_other(name):
    """The client is left out and counted, as if it had dropped out."""
    healthy = federation_of(name)
    if public := healthy.examples.public:
        healthy = healthy.with_public(np.asarray(healthy.prepare(public.inputs)))
    inputs = np.asarray(healthy.prepare(healthy.examples.inputs))
    sick = inputs.copy()
    sick[healthy.data.train.index[2, 0]] = np.nan
    round = compose(name, prepare=lambda images: images)
    state, metrics = run(round, data=healthy.with_examples(healthy.examples._replace(inputs=sick)).data)
    assert [int(m.num_nonfinite) for m in metrics] == [1, 1, 1]
    assert metrics[0].is_nonfinite.tolist() == [False, False, True, False, False]
    assert bool(tree.is_finite(state))
    assert int(state.counters.nonfinite) == 3
    if algorithm(name).reads_public and algorithm(name).survey:  # its answers about public examples are finite
        return
    absent = lambda key, n, number: (np.arange(5), np.arange(5) != 2)  # noqa: E731
    round = compose(name, prepare=lambda images: images, participation=Participation(lambda n: 5, absent))
    other, _ = run(round, data=healthy.with_examples(healthy.examples._replace(inputs=inputs)).data)
    assert difference(other._replace(counters=()), state._replace(counters=())) < rounding_tolerance(name)


OWN_LENGTHS = ("qffl", "fedmgda")
"""Algorithms whose step has the direction of the clients' updates, and a length of its own."""


@pytest.mark.extended
@all_quick_for("fedld")
def test_with_identical_clients_the_servers_step_is_theirs(name):
    """Without conflicts, every rule gives a result between the clients' updates, leaf entry by leaf entry, or,
    if its aggregator extrapolates, between them and a multiple of them.
    They differ only where an algorithm draws samples of its own; all examples are one batch, in whatever order."""
    alike = map_rows(
        federation_of(name).data, lambda rows: Rows(np.repeat(rows.index[:1], 5, axis=0), np.repeat(rows.count[:1], 5))
    )
    round = compose(name, change={"server_optimizer": optax.sgd(1.0)})
    state = round.init(make_key(0), alike)
    after, _, said = jax.jit(round.step_with_messages)(state, alike, make_key(0))
    start = params_of(name, round, state.server, state.server.shared)
    moved = tree.subtract(params_of(name, round, after.server, after.server.shared), start)
    updates = said.uploads.update["params"]
    if said.uploads.model is not None:
        moved = tree.take(moved, int(said.uploads.model[0]))
    if name in PRODUCTS:
        rows = [tree.add(state.server.shared, jax.tree.map(lambda x, i=i: x[i], said.uploads.update)) for i in range(5)]
        trained = [params_of(name, round, state.server, row) for row in rows]
        updates = jax.tree.map(lambda before, *rows: np.stack(rows) - before, start, *trained)
    if algorithm(name).aggregator.runs_model or algorithm(name).uplink:  # it trains, or its stage compresses twice
        assert bool(tree.is_finite(moved))
        return
    if name in OWN_LENGTHS:
        moved = tree.scale(tree.norm(tree.take(updates, 0)) / tree.norm(moved), moved)
    largest = algorithm(name).aggregator.extrapolation
    for update, step in zip(jax.tree.leaves(updates), jax.tree.leaves(moved), strict=True):
        update = np.concatenate([update, largest * update])
        slack = ROUNDING * np.abs(update).max(initial=0)
        assert np.all(np.min(update, axis=0) - slack <= step)
        assert np.all(step <= np.max(update, axis=0) + slack)


@all_quick_for("fedld")
@pytest.mark.parametrize(
    "still", [(0, 1, 2, 3, 4), pytest.param((2,), marks=pytest.mark.slow)], ids=["everyone", "one"]
)
def test_clients_with_zero_updates_stay_finite(name, still):
    """No NaN from the direction of a zero update; without updates, the server does not change."""
    round = compose(name, change={"local_update": keep_start(algorithm(name).local_update, still)})
    before = round.init(make_key(0), federation_of(name).data)
    state, metrics = run(round, rounds=2)
    assert bool(tree.is_finite(state))
    assert int(metrics[-1].num_reporting) == 5
    if len(still) == 5 and not algorithm(name).aggregator.runs_model:
        start, end = (params_of(name, round, server, server.shared) for server in (before.server, state.server))
        assert difference(start, end) < ROUNDING


def keep_start(local_update: LocalUpdate, clients: Sequence[int]) -> LocalUpdate:
    """These clients train, and keep their personal leaves and what they received."""

    def train(problem, view, key):
        trained = local_update.train(problem, view, key)
        is_still = jnp.isin(view.client, jnp.array(clients))
        personal, _ = tree.partition_like(view.start, view.received.shared)
        kept = tree.merge(view.received.shared, personal)  # a start rule may have changed shared leaves
        return trained._replace(variables=tree.where(is_still, kept, trained.variables))

    return local_update._replace(train=train)
