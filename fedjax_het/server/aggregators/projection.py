"""Taking the conflicting part out of updates, on coefficients alone: revised update i is sum_j C_ij g_j."""

import jax
import jax.numpy as jnp

from fedjax_het.types import Array

_RESOLVED = 1e-12  # of its squared parts: what an update that was cancelled to less has left is rounding


def at_once(gram: Array, is_pair: Array) -> Array:
    """g_i - sum_j <g_i, g_j>/|g_j|^2 g_j over all marked pairs [m, m], every product taken before any change."""
    squared = jnp.diagonal(gram)
    return jnp.eye(gram.shape[0]) - jnp.where(is_pair & (squared > 0), gram / _or_one(squared), 0)


def in_turn(gram: Array, partners: Array, is_pair: Array, *, is_tested: bool = True) -> Array:
    """For j = partners[i, 0], partners[i, 1], ...:   g_i' <- g_i' - <g_i', g_j>/|g_j|^2 g_j

    g_i' runs, g_j stays as it was sent. Only marked pairs [m, m], and where `is_tested` only if <g_i', g_j> < 0. No
    client waits for another, so this takes as many steps as there are partners.
    """
    rows, squared = jnp.arange(gram.shape[0]), jnp.diagonal(gram)

    def step(turn: Array, running: tuple[Array, Array]) -> tuple[Array, Array]:
        coefficients, products = running  # <g_i', g_k> is kept along, so that no step multiplies matrices
        partner = partners[:, turn]
        product, size = products[rows, partner], squared[partner]
        is_removed = is_pair[rows, partner] & (size > 0) & ((product < 0) | (not is_tested))
        share = jnp.where(is_removed, product / _or_one(size), 0)
        return coefficients.at[rows, partner].add(-share), products - share[:, None] * gram[partner]

    return jax.lax.fori_loop(0, partners.shape[1], step, (jnp.eye(gram.shape[0]), gram))[0]


def running(gram: Array, pairs: Array, is_pair: Array, *, is_mutual: bool) -> Array:
    """For each marked pair (i, j) in turn, if <g_i', g_j'> < 0:   g_i' <- g_i' - <g_i', g_j'>/|g_j'|^2 g_j'

    Both run; where `is_mutual` g_j' loses its part along the old g_i' as well.   pairs: [n, 2], is_pair: [n]. One
    step a pair, so m^2 steps.
    """
    moves = jnp.array([True, is_mutual])

    def step(turn: Array, running: tuple[Array, Array]) -> tuple[Array, Array]:
        coefficients, products = running  # products: <g_i', g_k> of what runs with what was sent
        pair = pairs[turn]
        both, with_sent = coefficients[pair], products[pair]
        squares = resolved(jnp.sum(both * with_sent, axis=1), both, gram)
        product = jnp.sum(both[0] * with_sent[1])
        is_removed = moves & is_pair[turn] & (product < 0) & jnp.all(squares > 0)
        share = jnp.where(is_removed, product / _or_one(squares[::-1]), 0)[:, None]
        return coefficients.at[pair].add(-share * both[::-1]), products.at[pair].add(-share * with_sent[::-1])

    return jax.lax.fori_loop(0, pairs.shape[0], step, (jnp.eye(gram.shape[0]), gram))[0]


def resolved(squared: Array, coefficients: Array, gram: Array) -> Array:
    """Squared lengths [...] of sum_j c_j g_j, coefficients [..., m]; 0 where the parts cancel to rounding."""
    parts = jnp.abs(coefficients) @ jnp.sqrt(jnp.maximum(jnp.diagonal(gram), 0))
    return jnp.where(squared > _RESOLVED * jnp.square(parts), squared, 0)


def _or_one(values: Array) -> Array:
    return jnp.where(values > 0, values, 1)
