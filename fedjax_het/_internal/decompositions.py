"""Decompositions of matrices, which programs for CPUs compute one at a time.

jaxlib 0.10 distributes a batch of LAPACK's decompositions over the threads of XLA, from one of them, and waits for the
others. As many such calls as there are threads wait for each other forever, and a program may have one for each leaf or
device. A single matrix is not distributed.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jax.scipy.linalg import solve_triangular

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
    """The lower factor, with gradients; the other decompositions have none on CPUs."""
    return _separate(jnp.linalg.cholesky)(matrix)


@cholesky.defjvp
def _cholesky_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """dL = L P(L^-1 dA L^-T), where P is the lower triangle, with half the diagonal."""
    lower = cholesky(*primals)
    change = solve_triangular(lower, solve_triangular(lower, *tangents, lower=True).T, lower=True).T
    return lower, lower @ (jnp.tril(change) - jnp.diag(jnp.diagonal(change) / 2))


eigh = _separate(jnp.linalg.eigh)
eigvalsh = _separate(jnp.linalg.eigvalsh)
qr = _separate(jnp.linalg.qr)
solve = _separate(jnp.linalg.solve)
svd = _separate(partial(jnp.linalg.svd, full_matrices=False))
