"""The weighted mean: FedAvg's rule, and every reweighting of it."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem, Weighting
from fedjax_het.server.weightings import named
from fedjax_het.types import Aggregate, PyTree, ServerView


def mean(weighting: str | Weighting = "samples") -> Aggregator:
    """u = sum_i p_i u_i, over parameters and every other shared collection alike.

    Shapes: leaves [cohort, ...] -> [...].   weighting: "samples" (p_i = n_i / n), "uniform", or any Weighting. Where
    weights are known from each upload alone, as those two are, the sum runs while clients train and nothing is stacked.
    McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017. arXiv:1602.05629
    """
    weighting = named(weighting)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, state = weighting.update(state, view)
        if view.summed is None:
            return Aggregate(tree.weighted_sum(view.uploads.update, weights), {}), state
        total = jnp.sum(jnp.where(view.is_present, jax.vmap(weighting.weigh)(view.uploads), 0))
        return Aggregate(tree.scale(1 / jnp.where(total > 0, total, 1), view.summed), {}), state

    return Aggregator(weighting.init, update, weighting.weigh)
