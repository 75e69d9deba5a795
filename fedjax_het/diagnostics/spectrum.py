"""In how many directions the clients pull (FedLD's principal axes)."""

import jax.numpy as jnp

from fedjax_het.diagnostics.seen import from_gram
from fedjax_het.types import Array, Named, RoundSnapshot

SHARES = (0.8, 0.9, 0.99)


def spectrum(gram: Array, is_present: Array) -> Named:
    """Of A = 1/m G G^T, from K = G G^T [m, m] in float64; m counts those present.

    eigenvalues: [m], falling.   num_axes: [3], so many of the largest hold 80, 90 and 99 % of their sum.
    entropy: [] of the shares, as a number of directions: exp(-sum_l q_l log q_l), 1 = one direction, m = all alike.
    FedLD keeps floor(fraction m) axes, whatever they hold.   Zeng et al., FedLD, Eq. 5.
    """
    values = jnp.maximum(jnp.linalg.eigvalsh(gram)[::-1], 0) / jnp.maximum(jnp.sum(is_present), 1)
    shares = values / jnp.where(values[0] > 0, jnp.sum(values), 1)
    reached = jnp.cumsum(shares)[:, None] < jnp.asarray(SHARES) - 1e-12
    logs = jnp.log(jnp.where(shares > 0, shares, 1))
    return {
        "eigenvalues": values,
        "num_axes": jnp.where(values[0] > 0, jnp.sum(reached, axis=0) + 1, 0),
        "entropy": jnp.where(values[0] > 0, jnp.exp(-jnp.sum(shares * logs)), 0),
    }


def of_round(problem, look: RoundSnapshot) -> Named:
    """`spectrum` of the updates' parameters."""
    return from_gram(lambda gram: spectrum(gram, look.view.is_present), look)
