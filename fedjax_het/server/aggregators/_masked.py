"""The mean of masked updates, entry by entry over the clients that do not mask the entry (FedHEAL)."""

import jax

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.errors import InputError
from fedjax_het.server.weightings import WeightingOrName, resolve_weighting
from fedjax_het.types import Aggregate, Array, PyTree, ServerView


def masked_mean(weighting: WeightingOrName = "samples") -> Aggregator:
    """Average each entry over the clients that send it.

        u = sum_i a_i m_i u_i / sum_j a_j m_j,   entry by entry; entries masked by all clients are unchanged

    Clients apply the masks and send m_i u_i. Collections besides the parameters use the weighted mean.
    Reads: reports["mask"], m_i, a tree like the shared parameters.

    Args:
        weighting: The weights a_i, as in `mean`.

    References:
        Chen, Huang and Ye, FedHEAL, CVPR 2024. arXiv:2405.16585; code yuhangchen0/FedHEAL,
        models/utils/federated_model.py, aggregate_nets_parameter.
    """
    weighting = resolve_weighting(weighting)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        if "mask" not in view.uploads.reports:
            raise InputError(
                "aggregator 'masked_mean' reads reports['mask'], which no client sends. Train by "
                'consistency.with_consistency_mask, and add reports={"mask": measures.result("mask")}.'
            )
        weights, state = weighting.update(state, view)
        sums = view.updates.combine(weights)

        def divide(total: Array, masks: Array) -> Array:
            open_weight = tree.weighted_sum(masks.astype(total.dtype), weights)
            return total / tree.positive_or_one(open_weight)

        params = jax.tree.map(divide, sums["params"], view.uploads.reports["mask"])
        return Aggregate(sums | {"params": params}, {}), state

    return Aggregator(weighting.init, update)
