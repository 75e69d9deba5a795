"""Weighted means of updates: FedAvg's mean, FedNova's normalized mean, and FedRD's sum of models."""

from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.errors import InputError
from fedjax_het.server.weightings import WeightingOrName, normalise, resolve_weighting, uniform
from fedjax_het.types import Aggregate, Array, PyTree, ServerView, Upload
from fedjax_het.validation import Positive, validate_arguments

EffectiveSteps = Literal["coefficients", "steps"]
EFFECTIVE_STEPS: dict[EffectiveSteps, Callable[[Array, Array, Array], Array]] = {
    "coefficients": lambda weights, norms, steps: jnp.sum(weights * norms),
    "steps": lambda weights, norms, steps: jnp.sum(weights * steps),
}


def mean(weighting: WeightingOrName = "samples", *, unweighted: Sequence[str] = ()) -> Aggregator:
    """The weighted mean u = sum_i p_i u_i of the parameters and all other shared collections.

    Args:
        weighting: "samples" (p_i = n_i / n), "uniform", or any Weighting. If weights follow from each upload alone, as
            for these two, the sum is accumulated while clients train and nothing is stacked.
        unweighted: Collections that use the plain mean, 1/m over the m present clients, for any weighting.

    References:
        McMahan et al., Communication-Efficient Learning of Deep Networks, AISTATS 2017. arXiv:1602.05629
    """
    weighting = resolve_weighting(weighting)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, state = weighting.update(state, view)
        if not unweighted:
            return Aggregate(view.updates.weighted_sum(weights, weighting.per_client), {}), state
        equal, _ = uniform.update((), view)
        plain = view.updates.select(lambda path: path.split("/")[0] in unweighted)
        weighted = view.updates.select(lambda path: path.split("/")[0] not in unweighted)
        means = weighted.weighted_sum(weights, weighting.per_client) | plain.weighted_sum(equal, uniform.per_client)
        return Aggregate(means, {}), state

    return Aggregator(weighting.init, update, is_uniform_mean=weighting is uniform)


@validate_arguments
def normalized_mean(
    weighting: WeightingOrName = "samples", tau_eff: EffectiveSteps | Positive = "coefficients"
) -> Aggregator:
    """Divide each update by its effective number of steps, average, and scale by that of the cohort (FedNova).

        u = tau_eff sum_i p_i u_i / |a_i|_1

    Clients with more steps then do not bias the optimum. Parameters only; other collections use the weighted mean.
    Clients without steps (|a_i|_1 = 0) are left out.
    Reads: reports["a_norm"] (see client.measures.coefficient_norm).

    Args:
        weighting: The weights p_i, as in `mean`.
        tau_eff: "coefficients", sum_i p_i |a_i|_1 (one client: its own update); "steps", sum_i p_i tau_i (the authors'
            code with a proximal term); or a number.

    Raises:
        InputError: tau_eff is invalid, or, when traced, clients do not report |a_i|_1.

    References:
        Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020.
    """
    weighting = resolve_weighting(weighting)

    def per_client(is_per_step: bool) -> Callable[[Upload], Array] | None:
        """The weight of a client, up to a factor, if it follows from its upload alone."""
        if (share := weighting.per_client) is None:
            return None
        return lambda upload: jnp.where(
            (norm := _norms(upload)) > 0, share(upload) / (tree.positive_or_one(norm) if is_per_step else 1), 0
        )

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        norms = _norms(view.uploads)
        weights, state = weighting.update(state, view)
        weights = normalise(weights, view.is_present & (norms > 0))
        effective = (
            EFFECTIVE_STEPS[tau_eff](weights, norms, view.uploads.num_steps) if isinstance(tau_eff, str) else tau_eff
        )
        params = view.updates.select(tree.is_parameter)
        rest = view.updates.select(lambda path: not tree.is_parameter(path))
        direction = params.weighted_sum(effective * weights / tree.positive_or_one(norms), per_client(is_per_step=True))
        others = rest.weighted_sum(weights, per_client(is_per_step=False))
        return Aggregate({**others, **direction}, {}), state

    return Aggregator(weighting.init, update)


def _norms(uploads: Upload) -> Array:
    if "a_norm" not in uploads.reports:
        raise InputError(
            "aggregator 'normalized_mean' reads reports['a_norm'], which no client sends. "
            'Add reports={"a_norm": coefficient_norm(learning_rate, momentum)} to the Algorithm.'
        )
    return uploads.reports["a_norm"]


def sum_of_models(weighting: WeightingOrName = "samples") -> Aggregator:
    """The sum of models w <- sum_i p_i w_i, with server rate 1:   u = sum_i p_i u_i - (1 - sum_i p_i) w.

    Equals `mean` if the weights sum to one. Otherwise the model shrinks accordingly, as in FedRD's released code; not
    recommended for other algorithms.

    Args:
        weighting: As in `mean`.
    """
    weighting = resolve_weighting(weighting)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, state = weighting.update(state, view)
        lost = 1 - jnp.sum(weights)
        moved = view.updates.weighted_sum(weights, weighting.per_client)
        update = jax.tree.map(lambda u, w: u - (lost * w).astype(u.dtype), moved, view.received.shared)
        return Aggregate(update, {}), state

    return Aggregator(weighting.init, update)
