from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models._norms import BatchNorm, LayerNorm, RMSNorm, _num_groups, norm

KEY = make_key(0)
START = {
    "params": {"scale": jnp.array([2.0, 0.5, 1.0]), "bias": jnp.array([0.1, -1.0, 0.0])},
    "batch_stats": {"mean": jnp.array([0.3, 0.0, -1.0]), "var": jnp.array([1.0, 2.0, 0.5])},
}


@jax.jit
def normalize_in_training(x, mask):
    y, state = BatchNorm().apply(START, x, mask, True, mutable=["batch_stats"])
    return y, state["batch_stats"]


def pytorch(x):
    """torch.nn.BatchNorm's formulae, momentum 0.1, in NumPy's float64."""
    x = np.asarray(x, np.float64)
    rows = x.reshape(-1, x.shape[-1])
    mean, var = rows.mean(0), rows.var(0)
    y = (x - mean) / np.sqrt(var + 1e-5) * START["params"]["scale"] + START["params"]["bias"]
    old = START["batch_stats"]
    return y, {"mean": 0.9 * old["mean"] + 0.1 * mean, "var": 0.9 * old["var"] + 0.1 * rows.var(0, ddof=1)}


def assert_close(found, expected, tolerance=1e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), found, expected)


@pytest.mark.extended
@pytest.mark.parametrize("shape", [(8, 3), (4, 5, 6, 3), (2, 3)])
def test_batch_norm_matches_pytorch(shape):
    x = 2 * jax.random.normal(KEY, shape) + 1
    assert_close(normalize_in_training(x, jnp.ones(shape[0])), pytorch(x), 1e-5)


@settings(max_examples=20, deadline=None)
@given(st.permutations([True, True, True, True, False, False]))
def test_batch_norm_ignores_padding(mask):
    is_example = np.array(mask)
    x = jax.random.normal(KEY, (6, 2, 2, 3)) + jnp.where(is_example, 0.0, 100.0)[:, None, None, None]
    y, stats = normalize_in_training(x, jnp.array(mask, jnp.float32))
    expected, expected_stats = normalize_in_training(x[is_example], jnp.ones(is_example.sum()))
    assert_close((y[is_example], stats), (expected, expected_stats))


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["batch", "batch_stat"])
def test_a_batch_of_padding_leaves_statistics_unchanged_and_has_no_gradient(kind):
    x = jax.random.normal(KEY, (4, 3))
    mask = jnp.zeros(4)
    layer = norm(kind)
    variables = START if kind == "batch" else {}

    def loss(variables, x):
        y, state = layer.apply(variables, x, mask, True, mutable=["batch_stats"])
        return jnp.sum(jnp.where(mask[:, None] > 0, jnp.square(y), 0)), state

    gradients, state = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(variables, x)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradients))
    assert_close(state, {"batch_stats": START["batch_stats"]} if kind == "batch" else {}, 0)


def test_the_variance_of_a_single_entry_is_zero():
    _, stats = normalize_in_training(jnp.array([[1.0, 2.0, 3.0], [9.0, 9.0, 9.0]]), jnp.array([1.0, 0.0]))
    assert_close(stats["var"], 0.9 * START["batch_stats"]["var"])


def test_evaluation_uses_the_running_statistics():
    x = jax.random.normal(KEY, (4, 3))
    stats, params = START["batch_stats"], START["params"]
    expected = (x - stats["mean"]) / jnp.sqrt(stats["var"] + 1e-5) * params["scale"] + params["bias"]
    assert_close(BatchNorm().apply(START, x, jnp.zeros(4), False), expected, 1e-5)


@pytest.mark.extended
def test_batch_stat_has_no_leaves_and_uses_the_batch_in_evaluation_too():
    x = 3 * jax.random.normal(KEY, (50, 4, 4, 3)) + 2
    layer = norm("batch_stat")
    assert layer.init(KEY, x, jnp.ones(50), False) == {}
    mask = (jnp.arange(50) < 40).astype(jnp.float32)
    y = layer.apply({}, x, mask, False)
    assert_close((y[:40].mean((0, 1, 2)), y[:40].var((0, 1, 2))), (np.zeros(3), np.ones(3)), 1e-4)
    np.testing.assert_array_equal(y, layer.apply({}, x, mask, True))


def test_a_static_norm_uses_the_statistics_that_it_is_given_in_evaluation():
    x, mask, layer = jax.random.normal(KEY, (6, 3)), jnp.ones(6), norm("static")
    alone = layer.init(KEY, x, mask, True)
    assert set(alone) == {"params"}
    given = alone | {"batch_stats": START["batch_stats"]}
    expected, tracked = BatchNorm(momentum=0.0).apply(given, x, mask, True, mutable=["batch_stats"])
    for variables, state in ((alone, {}), (given, tracked)):  # in training, those of the batch
        y, changed = layer.apply(variables, x, mask, True, mutable=list(state))
        assert_close((y, changed), (expected, state), 0)
    np.testing.assert_array_equal(layer.apply(alone, x, mask, False), expected)
    np.testing.assert_array_equal(layer.apply(given, x, mask, False), BatchNorm().apply(given, x, mask, False))


@pytest.mark.parametrize(("channels", "num_groups"), [(1, 1), (3, 1), (6, 1), (8, 2), (12, 3), (64, 16), (512, 32)])
def test_groups_hold_at_least_four_channels(channels, num_groups):
    assert _num_groups(channels, 32) == num_groups


@pytest.mark.extended
def test_group_norm_normalises_each_group_of_each_example():
    x = 3 * jax.random.normal(KEY, (2, 3, 3, 8)) + 5
    layer = norm("group")
    variables = layer.init(KEY, x, jnp.ones(2), False)
    assert jax.tree.map(jnp.shape, variables) == {"params": {"scale": (8,), "bias": (8,)}}
    groups = layer.apply(variables, x, jnp.ones(2), True).reshape(2, 9, 2, 4)
    assert_close((groups.mean((1, 3)), groups.var((1, 3))), (np.zeros((2, 2)), np.ones((2, 2))), 1e-4)


def test_the_norm_none_is_the_identity():
    x = jax.random.normal(KEY, (2, 3))
    np.testing.assert_array_equal(norm("none").apply({}, x, jnp.ones(2), True), x)


def test_an_unknown_norm_is_refused():
    with pytest.raises(InputError, match="Did you mean 'group'"):
        norm("groups")


@pytest.mark.parametrize(("ours", "flax"), [(LayerNorm, nn.LayerNorm), (RMSNorm, nn.RMSNorm)])
def test_norms_of_channels_are_those_of_flax_with_equal_gradients(ours, flax):
    x = 1.0 + jax.random.normal(make_key(0), (2, 3, 8))
    params = jax.tree.map(lambda leaf: leaf + jnp.arange(8.0), flax().init(make_key(1), x))

    def loss(norm, params, x):
        return jnp.sum(jnp.sin(norm(epsilon=1e-3).apply(params, x)))

    values = [jax.jit(jax.value_and_grad(partial(loss, norm), argnums=(0, 1)))(params, x) for norm in (ours, flax)]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), *values)


MASK = jnp.array([1.0, 1.0, 0.0, 1.0])


def normalize_plainly(kind, params, x):
    """The definitions, whose derivatives are JAX's own."""
    if kind == "group":
        rows, where, axes = x.reshape(*x.shape[:-1], 2, -1), None, (1, 2, 4)
    else:
        rows, where = x, MASK[:, None, None, None] > 0 if kind == "batch" else None
        axes = (0, 1, 2) if kind == "batch" else -1
    mean = 0 if kind == "rms" else rows.mean(axes, keepdims=True, where=where)
    var = jnp.mean(jnp.square(rows - mean), axes, keepdims=True, where=where)
    y = ((rows - mean) / jnp.sqrt(var + 1e-5)).reshape(x.shape)
    return y * params["scale"] + params.get("bias", 0)


def find_derivatives(normalize, params, x):
    """Of first order in both modes, of second order in reverse over reverse and in forward over reverse."""
    loss = lambda at: jnp.sum(jnp.sin(normalize(*at)) * MASK[:, None, None, None])  # noqa: E731
    gradient = jax.grad(loss)
    rough = lambda at: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(gradient(at)))  # noqa: E731
    at, to = (params, x), jax.tree.map(jnp.cos, (params, x))
    return *jax.jvp(loss, (at,), (to,)), gradient(at), *jax.jvp(gradient, (at,), (to,)), jax.grad(rough)(at)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("kind", "channels"), [("batch", 3), ("batch", 8), ("batch", 40), ("group", 8), ("layer", 8), ("rms", 8)]
)
def test_derivatives_are_those_of_the_definitions(kind, channels):
    """Batches with 8 or 40 channels by the kernel, if there is one; those with 3, and several clients, by XLA."""
    layers = {"layer": LayerNorm(epsilon=1e-5), "rms": RMSNorm(epsilon=1e-5)}

    def normalize(params, x):
        if kind in layers:
            return layers[kind].apply({"params": params}, x)
        state = {"batch_stats": {"mean": jnp.zeros(channels), "var": jnp.ones(channels)}} if kind == "batch" else {}
        return norm(kind).apply({"params": params, **state}, x, MASK, True, mutable=["batch_stats"])[0]

    params = {"scale": 1.0 + jnp.arange(channels) / 10}
    if kind != "rms":
        params["bias"] = jnp.arange(channels) / 5 - 1
    x = 2 * jax.random.normal(KEY, (4, 2, 3, channels)) + 1
    found = jax.jit(partial(find_derivatives, normalize))(params, x)
    expected = jax.jit(partial(find_derivatives, partial(normalize_plainly, kind)))(params, x)
    assert_close(found, expected, 1e-4)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), (params, x))
    several = jax.jit(jax.vmap(partial(find_derivatives, normalize)))(*stacked)
    assert_close(jax.tree.map(lambda leaf: leaf[0], several), expected, 1e-4)
