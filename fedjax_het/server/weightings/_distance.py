"""Weights that grow with the distance of client updates (FedHEAL)."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedjax_het import tree
from fedjax_het.algorithm import Weighting
from fedjax_het.errors import InputError
from fedjax_het.server.weightings._shares import normalise
from fedjax_het.types import Array, ServerView, Variables
from fedjax_het.validation import Fraction, validate_arguments


class Movement(NamedTuple):
    weights: Float[Array, "clients"]  # p_i
    changes: Float[Array, "clients"]  # Dp_i
    distances: Float[Array, "clients"]  # d_i of the client's last round
    has_reported: Bool[Array, "clients"]


@validate_arguments
def distance_momentum(beta: Fraction = 0.4, *, normalised: bool = True, counts_absent: bool = False) -> Weighting:
    """Upweight clients with large updates, which indicate hard domains.

        Dp_i <- (1 - beta) Dp_i + beta d_i / sum_j d_j,   p_i <- p_i + Dp_i, at first 1/m + Dp_i for m clients present
        p <- p / sum_j p_j over the clients present

    Shapes: [cohort] from p [clients]. The state of absent clients is kept. If no client has moved, nothing changes.
    Reads: reports["distance"] [cohort], d_i.

    Args:
        beta: The paper's β (default .4). 0: equal weights. 1: no momentum.
        normalised: False stores p without dividing it by its sum, as in the released code: p then grows by about one
            change per round, and later distances count less and less. The weights in use always sum to one.
        counts_absent: Whether sum_j d_j includes the last distances of absent clients, as in the released code.

    References:
        Chen, Huang and Ye, FedHEAL, CVPR 2024. arXiv:2405.16585; code yuhangchen0/FedHEAL,
        models/utils/federated_model.py, get_params_diff_weights.
    """

    def init(shared: Variables, num_clients: int) -> Movement:
        zeros = jnp.zeros(num_clients, float)
        return Movement(zeros, zeros, zeros, jnp.zeros(num_clients, bool))

    def update(state: Movement, view: ServerView) -> tuple[Array, Movement]:
        if "distance" not in view.uploads.reports:
            raise InputError(
                "weighting 'distance_momentum' reads reports['distance'], which no client sends. Train by "
                'consistency.with_consistency_mask, and add reports={"distance": measures.result("distance")}.'
            )
        ids, is_present = view.cohort, view.is_present
        own = jnp.where(is_present, view.uploads.reports["distance"], 0).astype(state.distances.dtype)
        last = state.distances.at[ids].set(jnp.where(is_present, own, state.distances[ids]))
        total = jnp.sum(last) if counts_absent else jnp.sum(own)
        first = 1 / jnp.maximum(jnp.sum(is_present), 1)
        weights = jnp.where(state.has_reported[ids], state.weights[ids], first)
        is_moved = is_present & (total > 0)
        changes = (1 - beta) * state.changes[ids] + beta * own / tree.positive_or_one(total)
        moved = jnp.where(is_moved, weights + changes, weights)
        kept = normalise(moved, is_present) if normalised else moved
        new = Movement(
            state.weights.at[ids].set(jnp.where(is_present, kept, state.weights[ids])),
            state.changes.at[ids].set(jnp.where(is_moved, changes, state.changes[ids])),
            last,
            state.has_reported.at[ids].set(state.has_reported[ids] | is_present),
        )
        return normalise(moved, is_present), new

    return Weighting(init, update)
