"""The weighted mean: FedAvg's rule, and every reweighting of it."""

from collections.abc import Sequence

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem, Weighting
from fedjax_het.server.weightings import named, total_weight, uniform
from fedjax_het.types import Aggregate, PyTree, ServerView, Upload, Variables


def mean(weighting: str | Weighting = "samples", *, unweighted: Sequence[str] = ()) -> Aggregator:
    """u = sum_i p_i u_i, over parameters and every other shared collection alike.

    Shapes: leaves [cohort, ...] -> [...].   weighting: "samples" (p_i = n_i / n), "uniform", or any Weighting. Where
    weights are known from each upload alone, as those two are, the sum runs while clients train and nothing is stacked.
    unweighted: collections whose mean is the plain one, 1/m over the m clients present, whatever the weighting.
    McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017. arXiv:1602.05629
    """
    weighting = named(weighting)

    def summand(upload: Upload) -> Variables:
        weighted, plain = apart(upload.update)
        return tree.scale(weighting.weigh(upload), weighted) | plain

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, state = weighting.update(state, view)
        weighted, plain = apart(view.uploads.update if view.summed is None else view.summed)
        if view.summed is None:
            equal, _ = uniform.update((), view)
            means = tree.weighted_sum(weighted, weights) | tree.weighted_sum(plain, equal)
        else:
            totals = [total_weight(each, view, view.is_present) for each in (weighting, uniform)]
            means = tree.scale(1 / totals[0], weighted) | tree.scale(1 / totals[1], plain)
        return Aggregate(means, {}), state

    def apart(update: Variables) -> tuple[Variables, Variables]:
        """The collections that are weighted, and the others."""
        plain = {name: leaves for name, leaves in update.items() if name in unweighted}
        return {name: leaves for name, leaves in update.items() if name not in plain}, plain

    return Aggregator(weighting.init, update, summand if weighting.weigh else None)
