"""The weighted mean: FedAvg's rule, and every reweighting of it."""

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem, Weighting
from fedjax_het.server.weightings import named
from fedjax_het.types import Aggregate, PyTree, ServerView


def mean(weighting: str | Weighting = "samples") -> Aggregator:
    """u = sum_i p_i u_i, over parameters and every other shared collection alike.

    Shapes: leaves [cohort, ...] -> [...].   weighting: "samples" (p_i = n_i / n), "uniform", or any Weighting.
    McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017. arXiv:1602.05629
    """
    weighting = named(weighting)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, state = weighting.update(state, view)
        return Aggregate(tree.weighted_sum(view.uploads.update, weights), {}), state

    return Aggregator(weighting.init, update)
