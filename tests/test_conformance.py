"""Every algorithm by every check. An exception is declared by the algorithm, never by name here."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_het import sharing, tree
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.engine.layout import chunked, sharded
from fedjax_het.engine.participation import Participation, available, uniformly
from fedjax_het.models import computed_in
from fedjax_het.types import Examples, Rows
from tests.harness import compose, difference, federation, is_equal, model, on_clients, plain, run, task_loss

# An algorithm's tests share compiled programs, so they stay in one process.
every_algorithm = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ALGORITHMS]
)
ROUNDING = 1e-5


@functools.cache
def reference(name: str):
    """(state, metrics) of three rounds of the plain layout."""
    return run(plain(name))


@every_algorithm
def test_keeps_structure_shapes_and_dtypes(name):
    before = plain(name).init(jax.random.key(0), federation().data)
    after, _ = reference(name)
    chex.assert_trees_all_equal_shapes_and_dtypes(before, after)
    assert int(after.server.round) == 3
    assert bool(tree.is_finite(after))


@every_algorithm
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(lambda: chunked(1), id="chunked(1)"),
        pytest.param(lambda: sharded(2, 2), id="sharded(2, 2)"),
        pytest.param(lambda: chunked(2), id="chunked(2)", marks=pytest.mark.slow),
        pytest.param(lambda: sharded(3), id="sharded(3)", marks=pytest.mark.slow),
    ],
)
def test_layouts_are_equal(name, layout):
    """Five clients fill neither two at a time nor three devices: the padding must change nothing."""
    state, _ = run(compose(name, layout=layout()))
    assert difference(reference(name)[0], state) < ROUNDING


@every_algorithm
def test_same_seed_same_bits_another_seed_others(name):
    assert is_equal(reference(name), run(plain(name)))
    assert not is_equal(reference(name), run(plain(name), seed=1))


@every_algorithm
def test_padding_of_the_index_table_changes_nothing(name):
    wider = on_clients(
        federation().data, lambda rows: Rows(np.pad(rows.index, ((0, 0), (0, 5)), constant_values=3), rows.count)
    )
    assert difference(reference(name)[0], run(plain(name), data=wider)[0]) < ROUNDING


@every_algorithm
def test_order_of_clients_changes_nothing(name):
    order = jnp.array([3, 0, 4, 1, 2])
    in_order = Participation(lambda n: 5, lambda key, n: (order, jnp.ones(5, bool)))
    state, _ = run(compose(name, participation=in_order))
    assert difference(reference(name)[0], state) < ROUNDING


@every_algorithm
def test_learns(name):
    before = plain(name).init(jax.random.key(0), federation().data)
    after, _ = run(plain(name), rounds=20)
    assert task_loss(plain(name), after) < 0.8 * task_loss(plain(name), before)


@every_algorithm
def test_personal_leaves_stay_at_home(name):
    round = compose(name, change={"sharing": sharing.batch_norms})
    state = round.init(jax.random.key(0), federation().data)
    after, metrics, said = jax.jit(round.explain)(state, federation().data, jax.random.key(0))
    personal = set(tree.paths(state.clients.personal))
    assert personal
    assert not personal & set(tree.paths(said.received.shared))
    assert not personal & set(tree.paths(said.uploads.update))
    assert not personal & set(tree.paths(after.server.shared))
    for report in jax.tree.leaves_with_path((said.uploads.reports, said.answers)):
        assert not any(path.split("/")[1] in jax.tree_util.keystr(report[0]) for path in personal)
    assert int(metrics.num_reporting) == 5


@every_algorithm
def test_works_with_an_adaptive_server_optimizer(name):
    round = compose(name, change={"server_optimizer": optax.adam(0.03)})
    before = round.init(jax.random.key(0), federation().data)
    after, _ = run(round, rounds=15)
    assert task_loss(round, after) < task_loss(round, before)


@every_algorithm
def test_works_in_bfloat16(name):
    """Weights and everything that is aggregated stay in float32, and the run stays near float32's."""
    round = compose(name, network=computed_in("bfloat16")(model()))
    state, metrics = run(round)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, reference(name)[0])
    assert bool(tree.is_finite(state))
    assert 0 < abs(metrics[-1].loss - reference(name)[1][-1].loss) < 0.1


@every_algorithm
def test_who_does_not_report_is_not_counted(name):
    round = compose(name, participation=available(0.5, among=uniformly(4)))
    state, metrics = run(round, rounds=6)
    reported = [int(m.num_reporting) for m in metrics]
    assert min(reported) < 4
    assert sum(reported) == int(state.tally.reports) == int(state.clients.rounds.sum())
    assert bool(tree.is_finite(state))


@every_algorithm
def test_nobody_reports(name):
    round = compose(name, participation=available(0.0))
    before = round.init(jax.random.key(0), federation().data)
    state, metrics = run(round, rounds=2)
    assert is_equal(before.server._replace(round=state.server.round), state.server)
    assert is_equal(before.clients, state.clients)
    assert np.isnan(metrics[-1].loss)


@every_algorithm
def test_one_client(name):
    alone = on_clients(federation().data, lambda rows: Rows(rows.index[-1:], rows.count[-1:]))
    state, _ = run(compose(name, num_clients=1), rounds=2, data=alone)
    assert bool(tree.is_finite(state))


@every_algorithm
def test_empty_client_counts_for_nothing(name):
    empty = on_clients(
        federation().data,
        lambda rows: Rows(np.concatenate([rows.index, rows.index[:1]]), np.append(rows.count, 0).astype(np.int32)),
    )
    state, metrics = run(compose(name, num_clients=6), data=empty)
    assert int(metrics[-1].num_reporting) == 5
    assert int(state.clients.rounds[5]) == 0
    assert bool(tree.is_finite(state))


@every_algorithm
def test_nan_of_one_client_reaches_nobody_else(name):
    """The client is left out and counted, and the others go on as if it had dropped out."""
    healthy = federation()
    inputs = np.asarray(healthy.prepare(healthy.examples.inputs))
    sick = inputs.copy()
    sick[healthy.data.train.index[2, 0]] = np.nan
    round = compose(name, prepare=lambda images: images)
    state, metrics = run(round, data=healthy.data._replace(examples=Examples(sick, healthy.examples.labels)))
    assert [int(m.num_nonfinite) for m in metrics] == [1, 1, 1]
    assert metrics[0].is_nonfinite.tolist() == [False, False, True, False, False]
    assert bool(tree.is_finite(state))
    assert int(state.tally.nonfinite) == 3
    absent = lambda key, n: (np.arange(5), np.arange(5) != 2)  # noqa: E731
    round = compose(name, prepare=lambda images: images, participation=Participation(lambda n: 5, absent))
    other, _ = run(round, data=healthy.data._replace(examples=Examples(inputs, healthy.examples.labels)))
    assert difference(other._replace(tally=()), state._replace(tally=())) < ROUNDING
