"""The plan of sums and stacks of a round, from the calls of its aggregator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.algorithm import Aggregator
from fedjax_het.engine.parallel.layout import chunked, sharded, vmapped
from fedjax_het.engine.round.update_plan import plan_stack
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import mean, normalized_mean
from fedjax_het.server.weightings._shares import WEIGHTINGS, weight_per_client
from fedjax_het.types import Aggregate
from tests.harness import algorithm, compose, difference, federation, plain_round, run

pytestmark = pytest.mark.extended


def trimmed_mean(num_trimmed: int) -> Aggregator:
    """As a user would write it: each coordinate without its largest and smallest values."""

    def update(problem, state, view):
        def trim(values):
            count = jnp.sum(view.is_present)
            present = view.is_present.reshape(-1, *[1] * (values.ndim - 1))
            ranked = jnp.sort(jnp.where(present, values, jnp.inf), axis=0)
            place = jnp.arange(len(values)).reshape(-1, *[1] * (values.ndim - 1))
            is_kept = (place >= num_trimmed) & (place < count - num_trimmed)
            return jnp.sum(jnp.where(is_kept, ranked, 0), axis=0) / jnp.maximum(count - 2 * num_trimmed, 1)

        return Aggregate(jax.tree.map(trim, view.updates.tensors()), {}), state

    return Aggregator(lambda shared, num_clients: (), update)


def plan(name: str, **options):
    """The plan of an algorithm's round, from shapes alone."""
    chosen, round, data = algorithm(name, **options), plain_round(name), federation().data
    state = jax.eval_shape(round.init, jax.random.key(0), data)
    _, metrics, said = jax.eval_shape(round.step_with_messages, state, data, jax.random.key(0))
    upload = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), said.uploads)
    return plan_stack(chosen, round.problem, state.server, said.received, upload, metrics.cohort, 5)


@pytest.mark.parametrize(
    ("name", "options", "num_sums", "is_stacked"),
    [
        ("fedavg", {}, 1, False),
        ("fednova", {}, 2, False),
        ("scaffold", {}, 2, False),
        ("fedcm", {}, 2, False),
        ("fedrd", {}, 0, True),  # weights from the distances of all clients
        ("fedld", {"aggregation": {"buffers": "in_vector"}}, 1, True),
        ("fedpac", {}, 1, False),
    ],
)
def test_the_calls_of_an_aggregator_decide_what_is_stacked(name, options, num_sums, is_stacked):
    found = plan(name, **options)
    assert sum(map(len, found.sums.values())) == num_sums
    assert found.is_stacked == is_stacked
    assert not found.packed


def test_leaves_read_in_bfloat16_are_packed():
    packed = plan("fedgh", aggregation={"stack": "bfloat16"}).packed
    assert packed and all(path.startswith("params/") for path in packed)


@pytest.mark.parametrize("layout", [vmapped, chunked(2), sharded(2)], ids=str)
def test_a_custom_trimmed_mean_equals_that_of_the_updates(layout):
    round = compose("fedavg", layout=layout, change={"aggregator": trimmed_mean(1)})
    data, key = federation().data, jax.random.key(0)
    before = round.init(key, data)
    after, _, said = jax.jit(round.step_with_messages)(before, data, key)
    expected = jax.tree.map(lambda u: np.sort(u, axis=0)[1:-1].mean(axis=0), said.uploads.update)
    moved = jax.tree.map(jnp.subtract, after.server.shared, before.server.shared)
    assert difference(expected, moved) < 1e-5


@pytest.mark.parametrize(("name", "aggregator"), [("fedavg", mean), ("fednova", normalized_mean)])
def test_a_sum_made_while_clients_train_is_that_of_the_stack(name, aggregator):
    by_examples = WEIGHTINGS["samples"]._replace(per_client=None)
    from_stack = compose(name, change={"aggregator": aggregator(by_examples)})
    assert difference(run(from_stack)[0], run(plain_round(name))[0]) < 1e-6


def test_weights_that_read_the_cohort_are_refused_as_known_beforehand():
    def update(problem, state, view):
        total = jnp.sum(view.uploads.num_examples)
        return Aggregate(view.updates.weighted_sum(total, lambda upload: upload.num_examples / total), {}), state

    aggregator = Aggregator(lambda shared, num_clients: (), update)
    round, data = compose("fedavg", change={"aggregator": aggregator}), federation().data
    state = round.init(jax.random.key(0), data)
    with pytest.raises(InputError, match=r"per_client.*reads arrays of the view\. Leave it out"):
        jax.eval_shape(round.step, state, data, jax.random.key(0))


def test_weights_can_read_a_traced_hyper_parameter():
    def after(power):
        weighting = weight_per_client(lambda upload: upload.num_examples**power)
        round, data = compose("fedavg", change={"aggregator": mean(weighting)}), federation().data
        key = jax.random.key(0)
        return round.step(round.init(key, data), jax.tree.map(jnp.asarray, data), key)[0].server.shared

    together = jax.vmap(after)(jnp.array([0.0, 1.0]))
    for i, weighting in enumerate(("uniform", "samples")):
        alone = run(compose("fedavg", options={"weighting": weighting}), rounds=1)[0].server.shared
        assert difference(jax.tree.map(lambda x, i=i: x[i], together), alone) < 1e-6


def test_an_aggregator_that_asks_for_no_inner_products_stays_in_float32():
    seen = []

    def update(problem, state, view):
        seen.append(jnp.ones(()).dtype)
        if is_gram_read:
            view.updates.gram()
        return mean().update(problem, state, view)

    for is_gram_read in (False, True):
        seen.clear()
        round = compose("fedavg", change={"aggregator": Aggregator(mean().init, update)})
        shared = run(round, rounds=1)[0].server.shared
        assert (seen[-1] == np.float64) == is_gram_read
        assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(shared))
