"""Conformance of every algorithm. An exception is declared by the algorithm, never by name here."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_het import sharing, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.engine.parallel.layout import chunked, sharded
from fedjax_het.engine.round.participation import Participation
from fedjax_het.errors import InputError
from fedjax_het.models import computed_in
from fedjax_het.types import Rows
from tests.harness import (
    ADAPTERS,
    CAPACITIES,
    PROMPTS,
    algorithm,
    all_quick_for,
    compose,
    difference,
    every_algorithm,
    every_algorithm_slowly,
    federation_of,
    is_equal,
    map_rows,
    network_of,
    one_of_each_family,
    plain_round,
    reference_run,
    rounding_tolerance,
    run,
    task_loss,
)

KEY = make_key(0)


@pytest.mark.every_case
@one_of_each_family
def test_a_round_keeps_structure_shapes_and_dtypes(name):
    before = plain_round(name).init(make_key(0), federation_of(name).data)
    after, _ = reference_run(name)
    chex.assert_trees_all_equal_shapes_and_dtypes(before, after)
    assert int(after.server.round) == 3
    assert bool(tree.is_finite(after))


@every_algorithm_slowly
@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(lambda: chunked(1), id="chunked(1)"),
        pytest.param(lambda: chunked(2), id="chunked(2)", marks=pytest.mark.slow),
        pytest.param(lambda: sharded(3), id="sharded(3)", marks=pytest.mark.slow),
    ],
)
def test_layouts_give_equal_results(name, layout):
    """Five clients need padding for two at a time and for three devices; it must not change the result."""
    state, _ = run(compose(name, layout=layout()))
    assert difference(reference_run(name)[0], state) < rounding_tolerance(name)


@pytest.mark.slow
@every_algorithm
def test_a_layout_sharded_in_chunks_gives_equal_results(name):
    state, _ = run(compose(name, layout=sharded(2, 2)))
    assert difference(reference_run(name)[0], state) < rounding_tolerance(name)


@every_algorithm
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(name):
    assert is_equal(reference_run(name), run(plain_round(name)))
    assert not is_equal(reference_run(name), run(plain_round(name), seed=1))


@every_algorithm_slowly
def test_padding_of_the_index_table_does_not_change_the_result(name):
    wider = map_rows(
        federation_of(name).data, lambda rows: Rows(np.pad(rows.index, ((0, 0), (0, 5)), constant_values=3), rows.count)
    )
    assert difference(reference_run(name)[0], run(plain_round(name), data=wider)[0]) < rounding_tolerance(name)


@every_algorithm_slowly
def test_the_order_of_clients_does_not_change_the_result(name):
    order = jnp.array([3, 0, 4, 1, 2])
    in_order = Participation(lambda n: 5, lambda key, n, number: (order, jnp.ones(5, bool)))
    state, _ = run(compose(name, participation=in_order))
    assert difference(reference_run(name)[0], state) < rounding_tolerance(name)


@every_algorithm
def test_training_lowers_the_task_loss(name):
    before = plain_round(name).init(make_key(0), federation_of(name).data)
    rounds = int(20 * algorithm(name).aggregator.extrapolation)  # extrapolated steps overshoot at first
    after, _ = run(plain_round(name), rounds=rounds)
    # A frozen body with random weights, and few trained weights; or sub-networks of few units, without a norm.
    share = 0.97 if name in [*ADAPTERS, *PROMPTS, *CAPACITIES] else 0.8
    assert task_loss(plain_round(name), after) < share * task_loss(plain_round(name), before)


@every_algorithm_slowly
def test_personal_leaves_are_never_sent(name):
    rule = sharing.personal("params/classifier/*") if name in [*ADAPTERS, *CAPACITIES] else sharing.batch_norms
    if algorithm(name).aggregator.runs_model:
        with pytest.raises(InputError, match="the server runs the whole model"):
            compose(name, change={"sharing": rule}).init(KEY, federation_of(name).data)
        return
    if name in PROMPTS:
        rule = algorithm(name).sharing
    if rule is sharing.share_all:  # the context is the only leaf
        with pytest.raises(InputError, match="the rule keeps every trained parameter"):
            compose(name, change={"sharing": sharing.personal("params/context")}).init(KEY, federation_of(name).data)
        return
    round = compose(name, change={"sharing": rule})
    state = round.init(make_key(0), federation_of(name).data)
    after, metrics, said = jax.jit(round.step_with_messages)(state, federation_of(name).data, make_key(0))
    personal = set(tree.paths(state.clients.personal)) - set(tree.paths(state.server.shared))  # without a server, all
    assert personal
    assert not personal & set(tree.paths(said.received.shared))
    assert not personal & set(tree.paths(said.uploads.update))
    assert not personal & set(tree.paths(after.server.shared))
    for report in jax.tree.leaves_with_path((said.uploads.reports, said.answers)):
        assert not any(path.split("/")[1] in jax.tree_util.keystr(report[0]) for path in personal)
    assert int(metrics.num_reporting) == 5


@all_quick_for("fedavg", "fedbn")
def test_training_works_with_an_adaptive_server_optimizer(name):
    round = compose(name, change={"server_optimizer": optax.adam(0.03)})
    before = round.init(make_key(0), federation_of(name).data)
    after, _ = run(round, rounds=5 if name in ADAPTERS else 15)  # on a frozen random body it overshoots later
    assert task_loss(round, after) < task_loss(round, before)


@all_quick_for("fedavg", "fedld")
def test_training_in_bfloat16_stays_near_float32(name):
    """Weights and aggregated values stay in float32, and the result is close to that of float32."""
    round = compose(name, network=computed_in("bfloat16")(network_of(name)))
    state, metrics = run(round)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, reference_run(name)[0])
    assert bool(tree.is_finite(state))
    assert 0 < abs(metrics[-1].loss - reference_run(name)[1][-1].loss) < 0.1
