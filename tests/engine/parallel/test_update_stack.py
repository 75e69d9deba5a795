"""Reductions of a stack of updates, with and without the compiled kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.float64 import in_double
from fedjax_het.engine.parallel import update_stack
from fedjax_het.engine.parallel.update_stack import StackedUpdates, explain_missing_kernel, inner_products, pack, unpack

RNG = np.random.default_rng(0)
SIZES = [(1, 1), (2, 5), (3, 17), (5, 1024), (7, 1025), (11, 5000), (43, 3001), (100, 40), (4, 0)]
needs_kernel = pytest.mark.skipif(explain_missing_kernel() is not None, reason=f"no kernel: {explain_missing_kernel()}")


@pytest.fixture(params=[pytest.param("kernel", marks=needs_kernel), "blocks"])
def gram_implementation(request, monkeypatch):
    if request.param == "blocks":
        monkeypatch.setattr(update_stack, "explain_missing_kernel", lambda: "a test")
        monkeypatch.setattr(update_stack, "_CPU_BLOCK", 2000)
    return request.param


def draw_rows(size) -> np.ndarray:
    return RNG.normal(size=size).astype(np.float32)


def gram(rows) -> np.ndarray:
    return np.asarray(jax.jit(in_double(inner_products))(rows))


def close(ours, wanted, tolerance):
    np.testing.assert_allclose(ours, wanted, rtol=0, atol=tolerance * max(1e-30, np.abs(wanted).max(initial=0)))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_inner_products_are_summed_in_float64(gram_implementation, size):
    rows = draw_rows(size)
    ours = gram(rows)
    assert ours.dtype == np.float64
    np.testing.assert_array_equal(ours, ours.T)
    close(ours, rows.astype(float) @ rows.T.astype(float), 1e-14)


@pytest.mark.extended
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_inner_products_of_packed_rows_are_summed_in_float32(gram_implementation, size):
    bits = pack(jnp.asarray(draw_rows(size)))
    rows = np.asarray(unpack(bits), float)
    close(gram(bits), rows @ rows.T, 1e-6)


def test_inner_products_work_under_vmap(gram_implementation):
    stacks = draw_rows((3, 4, 50))
    with jax.enable_x64(True):
        ours = jax.jit(jax.vmap(inner_products))(stacks)
    close(np.asarray(ours), np.einsum("sik,sjk->sij", stacks.astype(float), stacks.astype(float)), 1e-14)


def test_the_gram_matrix_of_several_leaves_is_exact(monkeypatch):
    monkeypatch.setattr(update_stack, "_CPU_BLOCK", 42)
    rows = draw_rows((6, 40))
    stack = StackedUpdates({"a": jnp.asarray(rows), "b": jnp.asarray(rows[:, :14].reshape(6, 2, 7))})
    with jax.enable_x64(True):
        ours = stack.gram()
    exact = rows.astype(float) @ rows.T.astype(float) + rows[:, :14].astype(float) @ rows[:, :14].T.astype(float)
    assert ours.dtype == np.float64
    np.testing.assert_allclose(ours, exact, rtol=1e-12, atol=1e-12)


@needs_kernel
def test_the_kernel_is_deterministic():
    """The result does not depend on threads; there are enough columns for several."""
    rows = draw_rows((6, 300_001))
    assert len({gram(rows).tobytes() for _ in range(5)}) == 1


@needs_kernel
def test_the_kernel_is_not_called_for_float64_rows(monkeypatch):
    monkeypatch.setattr(update_stack, "compute_gram_by_kernel", lambda rows: pytest.fail("called"))
    rows = draw_rows((3, 20)).astype(float)
    with jax.enable_x64(True):
        close(np.asarray(inner_products(jnp.asarray(rows))), rows @ rows.T, 1e-14)


@pytest.mark.extended
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_combination_of_packed_leaves_is_summed_in_float32(gram_implementation, size):
    leaf, factors = jnp.asarray(draw_rows(size)), draw_rows(size[0])
    ours = jax.jit(lambda bits: StackedUpdates(bits).combine(factors))({"w": pack(leaf)})["w"]
    assert ours.dtype == np.float32 and ours.shape == size[1:]
    close(np.asarray(ours), factors @ np.asarray(unpack(pack(leaf))), 1e-6)


def test_packing_rounds_to_bfloat16():
    update = {"w": jnp.asarray(draw_rows((3, 40))), "count": jnp.arange(3)}
    bits = pack(update)
    assert bits["w"].dtype == np.uint16 and bits["count"].dtype == update["count"].dtype
    back = unpack(bits)["w"]
    np.testing.assert_array_equal(back, update["w"].astype(jnp.bfloat16).astype(np.float32))
    assert np.abs(back / update["w"] - 1).max() <= 2**-8


def test_packing_keeps_the_largest_floats_finite():
    largest = np.array([[np.finfo(np.float32).max, -np.finfo(np.float32).max]])
    assert np.all(np.isfinite(unpack(pack(jnp.asarray(largest)))))
