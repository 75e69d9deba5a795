import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_het.engine.parallel.layout import Layout, chunked, sharded, vmapped
from fedjax_het.engine.parallel.update_stack import StackedUpdates, pack
from fedjax_het.errors import InputError

LAYOUTS = [vmapped, chunked(1), chunked(3), chunked(100), sharded(2), sharded(4, 1), sharded(3, 2)]


@pytest.mark.extended
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("num_clients", [1, 4, 7, 12])
def test_every_layout_maps_every_client(layout, num_clients):
    padded = layout.round_up(num_clients)
    assert padded >= num_clients
    values, common = jnp.arange(padded, dtype=jnp.float32), jnp.array([2.0, 3.0])
    out = jax.jit(lambda c, v: layout.map(lambda c, x: {"y": c * x}, c, v))(common, values)
    np.testing.assert_allclose(out["y"], np.outer(np.arange(padded), [2, 3]))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_sums_over_clients(layout):
    values = jnp.arange(layout.round_up(7), dtype=jnp.float32)
    double_and_square = lambda common, x: (common * x, {"squares": x * x})  # noqa: E731
    stacked, summed = jax.jit(lambda v: layout.map_and_sum(double_and_square, 2.0, v))(values)
    np.testing.assert_allclose(stacked, 2 * values)
    np.testing.assert_allclose(summed["squares"], np.sum(np.square(values)))


@pytest.mark.parametrize(
    ("layout", "expected"), [(vmapped, 10), (chunked(4), 12), (chunked(99), 10), (sharded(4), 12), (sharded(2, 3), 12)]
)
def test_the_cohort_is_padded_to_the_next_multiple_of_the_layout(layout, expected):
    assert layout.round_up(10) == expected


def test_sharded_accepts_a_mesh():
    mesh = Mesh(np.array(jax.devices()[:2]), ("anything",))
    assert sharded(mesh).num_devices == 2 and str(sharded(mesh, 3)) == "sharded(2, 3)"


@pytest.mark.parametrize("make", [lambda: chunked(0), lambda: sharded(99), lambda: sharded(0), lambda: sharded(1, 0)])
def test_invalid_layouts_are_refused(make):
    with pytest.raises(InputError, match=r"layout: 99|(size|devices|chunk): must be"):
        make()


def test_every_layout_maps_random_keys():
    keys = jax.vmap(jax.random.key)(jnp.arange(4))
    out = [
        jax.jit(lambda k, layout=layout: layout.map(lambda c, key: jax.random.uniform(key), (), k))(keys)
        for layout in (Layout(), sharded(2))
    ]
    np.testing.assert_array_equal(*out)


@pytest.mark.extended
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("num_clients", [1, 4, 7])
def test_reductions_of_a_stack_do_not_depend_on_the_layout(layout, num_clients, dtype, monkeypatch):
    monkeypatch.setattr("fedjax_het.engine.parallel.update_stack._EXCHANGE_BLOCK", 50)
    generator = np.random.default_rng(0)
    stack = {"a": generator.normal(size=(num_clients, 3, 5)), "b": generator.normal(size=(num_clients, 81))}
    stack = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), stack)
    stack = StackedUpdates(pack(stack) if dtype == "bfloat16" else stack)
    rows = np.concatenate([np.reshape(x, (num_clients, -1)) for x in stack.tensors().values()], axis=1).astype(float)
    factors = generator.normal(size=num_clients)

    def read(values, factors):
        lying = StackedUpdates(values, layout)
        by_tensor = lying.by_tensor().combine(jnp.stack([factors, 2 * factors]))
        return lying.gram(), lying.combine(factors), lying.select(lambda path: path == "b").combine(factors), by_tensor

    with jax.enable_x64(True):
        gram, combined, b_alone, tensors = jax.jit(read)(stack.stack, factors)
        assert gram.dtype == np.float64
        np.testing.assert_allclose(gram, rows @ rows.T, atol=1e-4)
        np.testing.assert_allclose(np.concatenate([np.ravel(combined[x]) for x in "ab"]), factors @ rows, atol=1e-5)
        assert b_alone.keys() == {"b"} and combined["a"].dtype == np.float32
        np.testing.assert_array_equal(b_alone["b"], tensors["b"] / 2)
        np.testing.assert_array_equal(combined["a"], tensors["a"])
