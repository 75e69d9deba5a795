"""The weighted mean: FedAvg's rule, and every reweighting of it."""

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem, Weighting
from fedjax_het.server.weightings import named, total_weight
from fedjax_het.types import Aggregate, PyTree, ServerView, Upload, Variables


def mean(weighting: str | Weighting = "samples") -> Aggregator:
    """u = sum_i p_i u_i, over parameters and every other shared collection alike.

    Shapes: leaves [cohort, ...] -> [...].   weighting: "samples" (p_i = n_i / n), "uniform", or any Weighting. Where
    weights are known from each upload alone, as those two are, the sum runs while clients train and nothing is stacked.
    McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017. arXiv:1602.05629
    """
    weighting = named(weighting)

    def summand(upload: Upload) -> Variables:
        return tree.scale(weighting.weigh(upload), upload.update)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, state = weighting.update(state, view)
        if view.summed is None:
            return Aggregate(tree.weighted_sum(view.uploads.update, weights), {}), state
        return Aggregate(tree.scale(1 / total_weight(weighting, view, view.is_present), view.summed), {}), state

    return Aggregator(weighting.init, update, summand if weighting.weigh else None)
