"""The weighted sum of the clients' models, whatever the weights sum to."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem, Weighting
from fedjax_het.server.weightings import named
from fedjax_het.types import Aggregate, PyTree, ServerView


def sum_of_models(weighting: str | Weighting = "samples") -> Aggregator:
    """w <- sum_i p_i w_i, with server rate 1:   u = sum_i p_i u_i - (1 - sum_i p_i) w.

    The same as `mean` for weights that sum to one. Where they do not, the model shrinks with them, as it does in
    FedRD's released code; nothing else should want that.
    Shapes: leaves [cohort, ...] -> [...].   weighting: as in `mean`.
    """
    weighting = named(weighting)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, state = weighting.update(state, view)
        lost = 1 - jnp.sum(weights)
        moved = tree.weighted_sum(view.uploads.update, weights)
        update = jax.tree.map(lambda u, w: u - (lost * w).astype(u.dtype), moved, view.received.shared)
        return Aggregate(update, {}), state

    return Aggregator(weighting.init, update)
