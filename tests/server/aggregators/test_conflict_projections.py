"""Projections on coefficients are those of vectors, computed in NumPy one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.server.aggregators import _conflict

SIZE = 40
RNG = np.random.default_rng(0)
STACK = RNG.normal(size=(SIZE, 60)) + 0.1 * RNG.normal(size=60)
STACK[7] = -STACK[3]  # opposites, a copy, and one that sent nothing
STACK[11] = STACK[5]
STACK[20] = 0
GRAM = STACK @ STACK.T
OTHERS = ~np.eye(SIZE, dtype=bool)
ORDERS = {
    "one order": np.broadcast_to(RNG.permutation(SIZE), (SIZE, SIZE)),
    "an order each": np.argsort(RNG.random((SIZE, SIZE)), axis=1),
}
PAIRS = np.stack(np.triu_indices(SIZE), axis=1)


def on_coefficients(function, *arrays, **options):
    with jax.enable_x64(True):
        return np.asarray(jax.jit(lambda *arrays: function(*arrays, **options))(*map(jnp.asarray, arrays))) @ STACK


def without(vector, other):
    return vector - vector @ other / (other @ other) * other


@pytest.mark.parametrize("is_tested", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_project_in_order_equals_projections_of_vectors(order, is_tested):
    is_pair = OTHERS if is_tested else OTHERS & (GRAM < 0)
    wanted = STACK.copy()
    for i, partners in enumerate(ORDERS[order]):
        for j in partners:
            if is_pair[i, j] and STACK[j].any() and (wanted[i] @ STACK[j] < 0 or not is_tested):
                wanted[i] = without(wanted[i], STACK[j])
    ours = on_coefficients(_conflict.project_in_order, GRAM, ORDERS[order], is_pair, is_tested=is_tested)
    np.testing.assert_allclose(ours, wanted, atol=1e-9)


@pytest.mark.parametrize("is_mutual", [True, False])
def test_project_running_equals_projections_of_vectors(is_mutual):
    """Where an update has been cancelled to rounding, it neither gives nor takes."""
    pairs = PAIRS[RNG.permutation(len(PAIRS))]
    is_pair = (pairs != 7).all(axis=1) & (pairs[:, 0] != pairs[:, 1])
    wanted = STACK.copy()
    for i, j in pairs[is_pair]:
        first, second = wanted[i].copy(), wanted[j].copy()
        if first @ second < 0:
            wanted[i] = without(first, second)
            if is_mutual:
                wanted[j] = without(second, first)
    ours = on_coefficients(_conflict.project_running, GRAM, pairs, is_pair, is_mutual=is_mutual)
    np.testing.assert_allclose(ours, wanted, atol=1e-9)


@pytest.mark.parametrize("name", ["project_in_order", "project_running"])
def test_no_projection_step_multiplies_two_square_matrices(name):
    """m steps of m^3, or m^2 of m^2, made a round of a thousand clients take minutes."""
    order = ORDERS["one order"] if name == "project_in_order" else PAIRS
    is_pair = OTHERS if name == "project_in_order" else np.ones(len(PAIRS), bool)
    options = {} if name == "project_in_order" else {"is_mutual": True}
    traced = jax.make_jaxpr(lambda *arrays: getattr(_conflict, name)(*arrays, **options))(GRAM, order, is_pair)
    products = [line for line in str(traced).splitlines() if "dot_general" in line]
    assert all(f"[{SIZE},{SIZE}]" not in line for line in products)
    assert str(traced).count("while") + str(traced).count("scan") >= 1
