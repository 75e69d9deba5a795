"""Lengths, angles, agreements and conflicts of vectors, from their Gram matrix K_ij = <g_i, g_j> alone.

Rows of absent clients are zero in K; a zero vector agrees with no other and conflicts with none.
"""

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedjax_het import tree
from fedjax_het.types import Array, Gram

Agreement = Literal["mean_excl", "sum_excl", "sum_incl"]


def lengths(gram: Gram) -> Float[Array, "cohort"]:
    """Lengths |g_i|."""
    return jnp.sqrt(jnp.maximum(jnp.diagonal(gram), 0))


def cosines(gram: Gram) -> Float[Array, "cohort cohort"]:
    """Cosines cos(g_i, g_j); 0 where either vector is zero."""
    inverse = _inverse(lengths(gram))
    return gram * inverse[:, None] * inverse


def projections(gram: Gram) -> Float[Array, "cohort cohort"]:
    """Mean projections p_ij = (|g_i| + |g_j|)/2 cos(g_i, g_j) of two vectors (FedMGC)."""
    inverse = _inverse(lengths(gram))
    return gram * (inverse[:, None] + inverse) / 2 * (inverse[:, None] > 0) * (inverse > 0)


def agreement(gram: Gram, is_present: Bool[Array, "cohort"], mode: Agreement = "mean_excl") -> Float[Array, "cohort"]:
    """p_i: how far the others go the way of client i (FedMGC, Def. 3).

    Args:
        gram: The Gram matrix.
        is_present: Whether a client takes part; the rows of the others are zero.
        mode: "mean_excl" = 1/(K - 1) sum_{j != i} p_ij, K clients present | "sum_excl", without 1/(K - 1) | "sum_incl"
            = sum_j p_ij, with p_ii = |g_i|.
    """
    pairs = projections(gram)
    if mode == "sum_incl":
        return jnp.sum(pairs, axis=1)
    total = jnp.sum(jnp.where(jnp.eye(len(gram), dtype=bool), 0, pairs), axis=1)
    return total / jnp.maximum(jnp.sum(is_present) - 1, 1) if mode == "mean_excl" else total


def dominance(agreement: Float[Array, "cohort"], losses: Float[Array, "cohort"]) -> Float[Array, "cohort"]:
    """Dominance z_i = p_i / l_i; a loss below 1e-12 counts as 1e-12 (FedMGC, Eq. 11, where the largest comes first)."""
    return agreement / jnp.maximum(losses, 1e-12)


def combined_gram(gram: Gram, coefficients: Float[Array, "edited cohort"]) -> Float[Array, "edited edited"]:
    """The Gram matrix C K C^T of the combinations sum_j C_ij g_j."""
    return coefficients @ gram @ coefficients.T


def is_conflict(gram: Gram, tolerance: Array | float = 0.0) -> Bool[Array, "cohort cohort"]:
    """Whether two vectors conflict, K_ij < -tolerance; no vector conflicts with itself."""
    return (gram < -tolerance) & ~jnp.eye(gram.shape[0], dtype=bool)


def _inverse(values: Array) -> Array:
    return jnp.where(values > 0, 1 / tree.positive_or_one(values), 0)
