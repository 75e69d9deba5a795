"""Inner products by digits, as on TPUs, compared with float64."""

import jax
import numpy as np
import pytest

from fedjax_het._internal.float64 import in_double
from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.engine.parallel import digit_products, update_stack
from fedjax_het.engine.parallel.layout import sharded, vmapped
from fedjax_het.engine.parallel.update_stack import StackedUpdates, inner_products

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def few_entries_are_many(monkeypatch):
    monkeypatch.setattr(update_stack, "_FEW_ENTRIES", 0)


def gram(rows) -> np.ndarray:
    with tracing_for("tpu"):
        return np.asarray(jax.jit(in_double(inner_products))(rows))


def assert_close(ours, rows, tolerance=4e-13):
    exact = rows.astype(float) @ rows.T.astype(float)
    np.testing.assert_allclose(ours, exact, rtol=0, atol=tolerance * np.abs(exact).max(initial=0))
    np.testing.assert_array_equal(ours, ours.T)


@pytest.mark.extended
@pytest.mark.parametrize("size", [(1, 1), (2, 5), (5, 512), (7, 5000), (100, 40), (4, 0)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 1e-15, 1e15])
def test_inner_products_by_digits_are_those_of_float64(size, scale):
    rows = (scale * RNG.normal(size=size)).astype(np.float32)
    assert_close(gram(rows), rows)


def test_entries_of_very_different_sizes_keep_their_products():
    rows = (RNG.normal(size=(6, 3000)) * 10 ** RNG.uniform(-12, 0, size=(6, 3000))).astype(np.float32)
    assert_close(gram(rows), rows)


def test_small_differences_between_rows_are_seen():
    """Singular values of 1e-5 of the largest, which a Gram matrix in float32 cannot resolve."""
    rows = (np.ones((4, 2000)) + 1e-5 * RNG.normal(size=(4, 2000))).astype(np.float32)
    ours, exact = (np.linalg.eigvalsh(m)[:-1] for m in (gram(rows), rows.astype(float) @ rows.T.astype(float)))
    np.testing.assert_allclose(ours, exact, rtol=1e-4)


def test_few_entries_are_multiplied_without_digits(monkeypatch):
    monkeypatch.setattr(update_stack, "_FEW_ENTRIES", 1 << 17)
    monkeypatch.setattr(update_stack, "multiply_by_digits", None)
    rows = RNG.normal(size=(4, 50)).astype(np.float32)
    assert_close(gram(rows), rows)
    with tracing_for("tpu"), jax.enable_x64(True):
        np.testing.assert_allclose(StackedUpdates(rows).products(rows[0]), rows @ rows[0].astype(float))


def test_columns_are_taken_in_blocks(monkeypatch):
    monkeypatch.setattr(digit_products, "_RESULTS", 1)
    rows = RNG.normal(size=(3, 2100)).astype(np.float32)
    assert_close(gram(rows), rows)


def test_a_row_that_is_not_finite_has_no_finite_product_and_leaves_the_others_alone():
    rows = RNG.normal(size=(3, 700)).astype(np.float32)
    for bad in (np.nan, np.inf):
        rows[0, 5] = bad
        ours = gram(rows)
        assert np.isnan(ours[0]).all() and np.isnan(ours[:, 0]).all()
        assert_close(ours[1:, 1:], rows[1:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_with_another_update_are_those_of_float64(dtype):
    rows, other = RNG.normal(size=(4, 700)).astype(dtype), RNG.normal(size=700).astype(dtype)
    stack, reference = {"a": rows[:, :600].reshape(4, 6, 100), "b": rows[:, 600:]}, {"a": other[:600].reshape(6, 100)}
    reference["b"] = other[600:]
    with tracing_for("tpu"), jax.enable_x64(True):
        ours = jax.jit(lambda stack, reference: StackedUpdates(stack).products(reference))(stack, reference)
    np.testing.assert_allclose(ours, rows.astype(float) @ other.astype(float), rtol=0, atol=3e-11)


def test_small_leaves_are_joined_without_a_change():
    rows = RNG.normal(size=(4, 90)).astype(np.float32)
    stack = {"a": rows[:, :60].reshape(4, 6, 10), "b": rows[:, 60:], "c": rows[:, :0]}
    with tracing_for("tpu"):
        assert_close(np.asarray(jax.jit(in_double(lambda stack: StackedUpdates(stack).gram()))(stack)), rows)


@pytest.mark.extended
@pytest.mark.parametrize("layout", [vmapped, sharded(2)], ids=str)
@pytest.mark.parametrize("results", [1, 1 << 22], ids=["by blocks", "at once"])
def test_each_leaf_has_products_of_its_own_whether_it_is_joined_or_not(layout, results, monkeypatch):
    monkeypatch.setattr(digit_products, "_RESULTS", results)
    monkeypatch.setattr(update_stack, "_EXCHANGE_BLOCK", 1)
    monkeypatch.setattr(update_stack, "_JOINED_LEAF", 3 * 1500)
    widths = {"a": 600, "b": 2000, "c": 1, "d": 1500, "e": 512}  # b is too large
    stack = {name: RNG.normal(size=(3, width)).astype(np.float32) for name, width in widths.items()}
    reference = {name: RNG.normal(size=width).astype(np.float32) for name, width in widths.items()}

    def read(stack, reference):
        updates = StackedUpdates(stack, layout).by_tensor()
        return updates.gram(), updates.products(reference)

    with tracing_for("tpu"), jax.enable_x64(True):
        grams, products = (np.asarray(array) for array in jax.jit(read)(stack, reference))
    assert len(grams) == len(products) == len(widths)
    for name, gram, product in zip(widths, grams, products, strict=True):
        assert_close(gram, stack[name])
        np.testing.assert_allclose(product, stack[name] @ reference[name].astype(float), rtol=0, atol=3e-11)
