"""Updates that are stacked in bfloat16."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.client.measures import effective_learning_rate
from fedjax_het.engine.parallel.layout import chunked, sharded
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import principal_directions
from fedjax_het.server.summaries import mean_direction
from fedjax_het.server.weightings import stateless
from tests.golden.replay import aggregate
from tests.harness import algorithm, compose, difference, federation, reference_run, run

NAMES = ["fedld", "fedmgc", "fedgh"]
STACK = {"stack": "bfloat16"}
PACKED = {"aggregation": STACK}
every_name = pytest.mark.parametrize("name", NAMES)


@pytest.mark.extended
@every_name
def test_a_run_with_a_bfloat16_stack_stays_near_the_one_in_float32(name):
    shared = run(compose(name, options=PACKED))[0].server.shared
    assert all(leaf.dtype == np.float32 for leaf in jax.tree.leaves(shared))
    assert 1e-6 < difference(reference_run(name)[0].server.shared, shared) < 1e-2


@pytest.mark.slow
@every_name
def test_a_bfloat16_stack_gives_similar_results_in_every_layout(name):
    alone, shared = (run(compose(name, options=PACKED, layout=layout))[0] for layout in (chunked(2), sharded(2)))
    assert difference(alone.server.shared, shared.server.shared) < 1e-3


def test_a_bfloat16_upload_has_half_the_bytes():
    bytes_up = []
    for options in ({}, PACKED):
        round, data, key = compose("fedld", options=options, norm="none"), federation().data, make_key(0)
        said = jax.eval_shape(round.step_with_messages, round.init(key, data), data, key)[2]
        bytes_up.append(tree.num_bytes(said.uploads.update))
    assert bytes_up[1] == bytes_up[0] / 2


@pytest.mark.extended
def test_statistics_that_are_averaged_stay_in_float32():
    round, data, key = compose("fedld", options=PACKED), federation().data, make_key(0)
    update = jax.eval_shape(round.step_with_messages, round.init(key, data), data, key)[2].uploads.update
    assert {leaf.dtype for leaf in jax.tree.leaves(update["params"])} == {np.dtype("uint16")}
    assert {leaf.dtype for leaf in jax.tree.leaves(update["batch_stats"])} == {np.dtype("float32")}


@pytest.mark.extended
def test_a_weighting_reads_packed_updates_as_floats():
    lengths = lambda view: jnp.sum(jnp.square(view.updates.tensors()["params"]["w"]), axis=1)  # noqa: E731
    by_length = stateless(lambda view: jax.nn.softmax(lengths(view)))._replace(reads="tensors")
    update = {"params": {"w": jnp.asarray(np.random.default_rng(0).normal(size=(5, 30)), jnp.float32)}}
    plain, packed = principal_directions(weighting=by_length), principal_directions(weighting=by_length, **STACK)
    ours, wanted = aggregate(packed, update)[0], aggregate(plain, update)[0]
    assert difference(wanted, ours) < 1e-2


@pytest.mark.slow
def test_streaming_sums_are_of_the_unpacked_updates():
    momentum = {"reports": {"momentum": effective_learning_rate(0.05)}, "published": {"momentum": mean_direction()}}
    rounds = [compose("fedgh", options=options, change=momentum) for options in ({}, PACKED)]
    plain, packed = (run(round, rounds=1)[0].server.published["momentum"] for round in rounds)
    assert tree.norm(plain) > 0
    assert difference(plain, packed) < 1e-6


def test_an_unknown_stack_dtype_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"stack: unknown option 'float16'. Did you mean 'bfloat16'"):
        algorithm("fedgh", aggregation={"stack": "float16"})
