"""Decompositions of matrices and triangular solves, which programs for CPUs compute one at a time.

jaxlib 0.10 distributes a batch of LAPACK's decompositions or solves over the threads of XLA, from one of them, and
waits for the others. As many such calls as there are threads wait for each other forever, and a program may have one
for each leaf or device. A single matrix is not distributed.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jax.scipy import linalg

from fedjax_het._internal.target_platform import target_platform
from fedjax_het.types import Array

Factors = TypeVar("Factors")


def _separate(decompose: Callable[..., Factors]) -> Callable[..., Factors]:
    """The decomposition of matrices [m, n], of which `jax.vmap` makes a loop on CPUs."""

    def without_options(*matrices: Array) -> Factors:
        return decompose(*matrices)

    def decompose_separately(*matrices: Array) -> Factors:
        return (sequential_vmap(without_options) if target_platform() == "cpu" else decompose)(*matrices)

    return decompose_separately


@jax.custom_jvp
def cholesky(matrix: Array) -> Array:
    """The lower factor, with gradients, which the other decompositions do not have on CPUs."""
    return _separate(jnp.linalg.cholesky)(matrix)


@cholesky.defjvp
def _cholesky_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """dL = L P(L^-1 dA L^-T), where P is the lower triangle, with half the diagonal."""
    lower = cholesky(*primals)
    change = solve_lower(lower, solve_lower(lower, *tangents).T).T
    return lower, lower @ (jnp.tril(change) - jnp.diag(jnp.diagonal(change) / 2))


def solve_lower(lower: Array, right: Array) -> Array:
    """L^-1 b of a lower triangular L [n, n] and b [n] or [n, k], with gradients."""
    solve, transposed = (_separate(partial(linalg.solve_triangular, lower=True, trans=trans)) for trans in (0, 1))
    return jax.lax.custom_linear_solve(
        lambda x: lower @ x, right, lambda _, b: solve(lower, b), lambda _, b: transposed(lower, b)
    )


def cho_solve(lower: Array, right: Array) -> Array:
    """(L L^T)^-1 b of a Cholesky factor L [n, n] and b [n] or [n, k], with gradients."""
    solve = _separate(lambda lower, b: linalg.cho_solve((lower, True), b))
    return jax.lax.custom_linear_solve(
        lambda x: lower @ (lower.T @ x), right, lambda _, b: solve(lower, b), symmetric=True
    )


eigh = _separate(jnp.linalg.eigh)
eigvalsh = _separate(jnp.linalg.eigvalsh)
qr = _separate(jnp.linalg.qr)
solve = _separate(jnp.linalg.solve)
svd = _separate(partial(jnp.linalg.svd, full_matrices=False))
