"""Weighted means of updates: FedAvg's, FedNova's normalized mean, FedRD's sum of models, FedHEAL's masked mean."""

from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.errors import InputError
from fedjax_het.server.weightings import WeightingOrName, normalise, resolve_weighting, uniform
from fedjax_het.types import Aggregate, Array, PyTree, ServerView, Upload, WeightedSum
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
    plain = WeightedSum(uniform.per_client, lambda path: path.split("/")[0] in unweighted)
    others = (lambda path: path.split("/")[0] not in unweighted) if unweighted else None
    weighted = WeightedSum(weighting.per_client, others)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, state = weighting.update(state, view)
        means = view.updates.weighted_sum(weights, weighted)
        if unweighted:
            means |= view.updates.weighted_sum(uniform.update((), view)[0], plain)
        return Aggregate(means, {}), state

    sums = (weighted, plain) if unweighted else (weighted,)
    return Aggregator(weighting.init, update, weighting.reads, sums, is_uniform_mean=weighting is uniform)


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

    share = weighting.per_client
    per_step = share and (lambda upload: _divide(share(upload), _norms(upload)))
    per_client = share and (lambda upload: jnp.where(_norms(upload) > 0, share(upload), 0))
    steps = WeightedSum(per_step, tree.is_parameter)
    others = WeightedSum(per_client, lambda path: not tree.is_parameter(path))

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        norms = _norms(view.uploads)
        weights, state = weighting.update(state, view)
        weights = normalise(weights, view.is_present & (norms > 0))
        effective = (
            EFFECTIVE_STEPS[tau_eff](weights, norms, view.uploads.num_steps) if isinstance(tau_eff, str) else tau_eff
        )
        direction = view.updates.weighted_sum(effective * weights / tree.positive_or_one(norms), steps)
        return Aggregate(view.updates.weighted_sum(weights, others) | direction, {}), state

    return Aggregator(weighting.init, update, weighting.reads, (steps, others))


def _divide(share: Array, norm: Array) -> Array:
    return jnp.where(norm > 0, share / tree.positive_or_one(norm), 0)


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
    total = WeightedSum(weighting.per_client)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, state = weighting.update(state, view)
        lost = 1 - jnp.sum(weights)
        moved = view.updates.weighted_sum(weights, total)
        update = jax.tree.map(lambda u, w: u - (lost * w).astype(u.dtype), moved, view.received.shared)
        return Aggregate(update, {}), state

    return Aggregator(weighting.init, update, weighting.reads, (total,))


def masked_mean(weighting: WeightingOrName = "samples") -> Aggregator:
    """Average each entry over the clients that send it.

        u = sum_i a_i m_i u_i / sum_j a_j m_j,   entry by entry; entries masked by all clients are unchanged

    Clients apply the masks and send m_i u_i. Collections besides the parameters use the weighted mean.
    Reads: reports["mask"], m_i, a tree like the shared parameters, of masks, or of tuples of masks of the axes whose
    outer product is the mask (`capacities.with_capacity`).

    Args:
        weighting: The weights a_i, as in `mean`.

    References:
        Chen, Huang and Ye, FedHEAL, CVPR 2024. arXiv:2405.16585; code yuhangchen0/FedHEAL,
        models/utils/federated_model.py, aggregate_nets_parameter.
    """
    weighting = resolve_weighting(weighting)
    total = WeightedSum(weighting.per_client)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        if "mask" not in view.uploads.reports:
            raise InputError(
                "aggregator 'masked_mean' reads reports['mask'], which no client sends. Train by "
                "consistency.with_consistency_mask or capacities.with_capacity, and add "
                'reports={"mask": measures.result("mask")}.'
            )
        weights, state = weighting.update(state, view)
        sums = view.updates.weighted_sum(weights, total)

        def divide(total: Array, masks: Array | tuple[Array, ...]) -> Array:
            if isinstance(masks, tuple):
                open_weight = _sum_of_outer_products(masks, weights.astype(total.dtype))
            else:
                open_weight = tree.weighted_sum(masks.astype(total.dtype), weights)
            return total / tree.positive_or_one(open_weight)

        params = jax.tree.map(divide, sums["params"], view.uploads.reports["mask"])
        return Aggregate(sums | {"params": params}, {}), state

    return Aggregator(weighting.init, update, weighting.reads, (total,))


def _sum_of_outer_products(masks: Sequence[Array], weights: Array) -> Array:
    """sum_i weights_i times the outer product of the i-th row of each array [cohort, axis]."""
    axes = "abcdefgh"[: len(masks)]
    terms = ",".join(["i", *(f"i{axis}" for axis in axes)])
    rows = (mask.astype(weights.dtype) for mask in masks)
    return jnp.einsum(f"{terms}->{axes}", weights, *rows, precision=jax.lax.Precision.HIGHEST)
