"""The declarations of aggregators, and the sums and stacks of a round."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Aggregator
from fedjax_het.engine.parallel.layout import chunked, sharded, vmapped
from fedjax_het.engine.round.update_plan import find_readers, is_stacked, streamed_sums
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import mean, normalized_mean
from fedjax_het.server.weightings._shares import WEIGHTINGS, weight_per_client
from fedjax_het.types import Aggregate, WeightedSum
from tests.harness import algorithm, compose, difference, federation, plain_round, run

pytestmark = pytest.mark.extended


def refuse(aggregator: Aggregator, message: str) -> None:
    round, data = compose("fedavg", change={"aggregator": aggregator}), federation().data
    state = round.init(make_key(0), data)
    with pytest.raises(InputError, match=message):
        jax.eval_shape(round.step, state, data, make_key(0))


@pytest.mark.parametrize(
    ("name", "options", "num_sums", "stacks"),
    [
        ("fedavg", {}, 1, False),
        ("fednova", {}, 2, False),
        ("scaffold", {}, 2, False),
        ("fedcm", {}, 2, False),
        ("fedrd", {}, 0, True),  # weights from the distances of all clients
        ("fedld", {"aggregation": {"buffers": "in_vector"}}, 1, True),
        ("fedheal", {}, 0, True),
        ("fedpac", {}, 1, False),
    ],
)
def test_an_aggregator_declares_what_is_stacked(name, options, num_sums, stacks):
    chosen = algorithm(name, **options)
    assert sum(len(streamed_sums(reader.part)) for reader in find_readers(chosen).values()) == num_sums
    assert is_stacked(chosen) == stacks
    assert chosen.aggregator.packed is None


@pytest.mark.parametrize("layout", [vmapped, chunked(2), sharded(2)], ids=str)
def test_a_custom_median_equals_that_of_the_updates(layout):
    def update(problem, state, view):
        return Aggregate(jax.tree.map(lambda u: jnp.median(u, axis=0), view.updates.tensors()), {}), state

    median = Aggregator(lambda shared, num_clients: (), update, reads="tensors")
    round = compose("fedavg", layout=layout, change={"aggregator": median})
    data, key = federation().data, make_key(0)
    before = round.init(key, data)
    after, _, said = jax.jit(round.step_with_messages)(before, data, key)
    expected = jax.tree.map(lambda u: np.median(u, axis=0), said.uploads.update)
    moved = jax.tree.map(jnp.subtract, after.server.shared, before.server.shared)
    assert difference(expected, moved) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "aggregator"), [("fedavg", mean), ("fednova", normalized_mean)])
def test_a_sum_made_while_clients_train_is_that_of_the_stack(name, aggregator):
    by_examples = WEIGHTINGS["samples"]._replace(per_client=None)
    from_stack = compose(name, change={"aggregator": aggregator(by_examples)})
    assert difference(run(from_stack)[0], run(plain_round(name))[0]) < 1e-6


@pytest.mark.parametrize(
    ("read", "reads", "message"),
    [
        (lambda updates: updates.tensors(), "sums", r"the aggregator declares reads='sums', .* reads='tensors'"),
        (lambda updates: updates.gram(), "sums", r"reads='sums', .* Declare reads='gram'"),
        (lambda updates: updates.select(bool).gram(), "tensors", r"reads='tensors', .* Declare reads='gram'"),
        (lambda updates: updates.weighted_sum(jnp.ones(5), WeightedSum()), "gram", r"does not declare.* sums="),
    ],
)
def test_a_read_that_an_aggregator_does_not_declare_is_refused(read, reads, message):
    def update(problem, state, view):
        return Aggregate(read(view.updates), {}), state

    refuse(Aggregator(lambda shared, num_clients: (), update, reads), message)


def test_a_weight_that_reads_a_missing_report_is_refused():
    weighting = weight_per_client(lambda upload: upload.reports["loss"])
    refuse(mean(weighting), r"the aggregator reads reports\['loss'\], but this algorithm fills only: nothing")


@pytest.mark.slow
def test_weights_can_read_a_traced_hyper_parameter():
    def after(power):
        weighting = weight_per_client(lambda upload: upload.num_examples**power)
        round, data = compose("fedavg", change={"aggregator": mean(weighting)}), federation().data
        key = make_key(0)
        return round.step(round.init(key, data), jax.tree.map(jnp.asarray, data), key)[0].server.shared

    together = jax.vmap(after)(jnp.array([0.0, 1.0]))
    for i, weighting in enumerate(("uniform", "samples")):
        alone = run(compose("fedavg", options={"weighting": weighting}), rounds=1)[0].server.shared
        assert difference(jax.tree.map(lambda x, i=i: x[i], together), alone) < 1e-6


def test_only_an_aggregator_that_reads_inner_products_runs_in_float64():
    seen, average = [], mean()

    def update(problem, state, view):
        seen.append(jnp.ones(()).dtype)
        return average.update(problem, state, view)

    for reads in ("sums", "tensors", "gram"):
        round = compose("fedavg", change={"aggregator": average._replace(update=update, reads=reads)})
        shared = run(round, rounds=1)[0].server.shared
        assert (seen[-1] == np.float64) == (reads == "gram")
        assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(shared))
