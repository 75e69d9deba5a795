"""How much each client counts in what the server made of a round."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.diagnostics.seen import from_gram
from fedjax_het.types import Array, Named, RoundSnapshot

_RANK = 1e-10  # of the largest eigenvalue: directions under it are rounding


def implied_weights(gram: Array, products: Array, squared: Array) -> Named:
    """The w that come nearest to u = sum_i w_i u_i, with K_ij = <u_i, u_j> [m, m] and b_i = <u_i, u> [m], in float64.

        w = K^+ b,   residual = |u - sum_i w_i u_i| / |u|

    squared: |u|^2. Where updates depend on each other, w is the shortest of those that do as well. The weights of
    FedGA, FedRD and any other mean come out as they are, with residual 0; of aggregators that edit updates, what each
    counts for in the end, which may be negative.
    """
    values, vectors = jnp.linalg.eigh(gram)
    is_kept = values > _RANK * jnp.maximum(values[-1], 0)
    weights = vectors @ (jnp.where(is_kept, 1 / jnp.where(is_kept, values, 1), 0) * (vectors.T @ products))
    left = squared - 2 * weights @ products + weights @ gram @ weights
    return {"weights": weights, "residual": jnp.sqrt(jnp.maximum(left, 0) / jnp.where(squared > 0, squared, 1))}


def of_round(problem, look: RoundSnapshot) -> Named:
    """`implied_weights` of the change of the server's parameters, its optimizer's step included."""
    moved = tree.subtract(look.shared["params"], look.view.received.shared["params"])
    updates = look.view.updates.tensors()["params"]

    def measure(gram: Array, updates, moved) -> Named:
        pairs = [
            (u.reshape(len(u), -1).astype(float), v.ravel().astype(float))
            for u, v in zip(jax.tree.leaves(updates), jax.tree.leaves(moved), strict=True)
        ]
        products = sum(u @ v for u, v in pairs)
        return implied_weights(gram, products, sum(v @ v for _, v in pairs))

    return from_gram(measure, look, updates, moved)
