"""Per-client mixtures of the clients' heads (FedPAC)."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.float64 import in_double
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.server.simplex import minimize_on_simplex
from fedjax_het.types import Aggregate, Array, PyTree, ServerView
from fedjax_het.validation import Fraction, validate_arguments


def risk_matrices(variance: Array, means: Array, is_present: Array) -> Array:
    """P_i = diag(V) + B_i,  B_i[j, l] = <H_i - H_j, H_i - H_l>: mixture a of heads has risk a^T P_i a for client i.

    Shapes: variance [m], means [m, class, feature] -> [m, m, m]. Positive semi-definite by construction.
    """
    rows = means.reshape(means.shape[0], -1)
    present = is_present[:, None]
    centre = jnp.sum(jnp.where(present, rows, 0), axis=0) / jnp.maximum(jnp.sum(is_present), 1)
    rows = jnp.where(present, rows - centre, 0)  # only differences matter; centering reduces rounding errors
    gram = jnp.matmul(rows, rows.T, precision=jax.lax.Precision.HIGHEST)
    own = jnp.diagonal(gram)[:, None, None]
    bias = own - gram[:, :, None] - gram[:, None, :] + gram
    return bias + jnp.diag(variance)


def collaboration_weights(variance: Array, means: Array, is_present: Array) -> Array:
    """a_i = argmin a^T P_i a on the simplex of present clients, rows of [m, m]; e_i for absent clients.

    The programs are solved in float64.
    """

    def solve(variance: Array, means: Array, is_present: Array) -> Array:
        matrices = risk_matrices(variance.astype(float), means.astype(float), is_present)
        clients = jnp.arange(is_present.shape[0])
        allowed = (is_present & is_present[:, None]) | (clients[:, None] == clients)
        upper = jnp.where(allowed, jnp.inf, 0)
        return jax.vmap(minimize_on_simplex)(matrices, clients, upper).astype(variance.dtype)

    return in_double(solve)(variance, means, is_present)


def drop_small_weights(weights: Array, threshold: float = 1e-3) -> Array:
    """Drop entries below the threshold and renormalize each row; rows without larger entries are unchanged."""
    large = jnp.where(weights >= threshold, weights, 0)
    total = jnp.sum(large, axis=-1, keepdims=True)
    return jnp.where(total > 0, large / tree.positive_or_one(total), weights)


@validate_arguments
def collaborative_heads(others: Aggregator, threshold: Fraction = 1e-3) -> Aggregator:
    """Give each client the best mixture of heads; another aggregator combines everything else.

        head_i <- sum_j a_ij head_j,   a_i = argmin a^T P_i a,   P_i = diag(V) + B_i      (see `risk_matrices`)

    The solution is exact, without the code's solver and its repair of P_i, which can fail.
    Reads: reports["head"] (personal leaves [cohort, ...]; no mixture if there are none), reports["statistics"]
    {"variance", "means"}.

    Args:
        others: The aggregator of the shared leaves, mean() in the paper.
        threshold: Smaller weights are dropped (default .001, as in the code). 0: keep all.

    Returns:
        An aggregator whose replies are the mixed heads, leaves [cohort, ...], for the present clients.

    References:
        Xu, Tong and Huang, FedPAC, ICLR 2023, Eq. 12; code JianXu95/FedPAC, tools.py, get_head_agg_weight.
    """

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        aggregate, state = others.update(problem, state, view)
        heads, statistics = view.uploads.reports["head"], view.uploads.reports["statistics"]
        weights = collaboration_weights(statistics["variance"], statistics["means"], view.is_present)
        weights = drop_small_weights(weights, threshold)
        return Aggregate(aggregate.update, tree.weighted_sum(heads, weights)), state

    return others._replace(update=update)
