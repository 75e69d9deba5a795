"""Weights from how far a low layer moved and what training won (FedRD's guided aggregation)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import traverse_util

from fedjax_het.algorithm import Weighting
from fedjax_het.errors import InputError, nearest
from fedjax_het.server.weightings.low_layer import low_layer
from fedjax_het.types import Array, PyTree, ServerView, Variables
from fedjax_het.validation import CountOrZero, validate_arguments

NEGLIGIBLE = 1e-8  # the authors' limit: distances that sum to less say nothing


def _l2(start: Array, changes: Array) -> Array:
    return jnp.sqrt(jnp.sum(jnp.square(changes), axis=1))


def _cosine(start: Array, changes: Array) -> Array:
    trained = start + changes
    lengths = jnp.linalg.norm(start) * jnp.linalg.norm(trained, axis=1)
    return jnp.where(lengths > 0, 1 - trained @ start / jnp.where(lengths > 0, lengths, 1), 0)


DISTANCES: dict[str, Callable[[Array, Array], Array]] = {"l2": _l2, "cosine": _cosine}


@validate_arguments
def parameter_guided(layer: str | None = None, distance: str = "l2", official_n_extra: CountOrZero = 0) -> Weighting:
    """Clients count more whose low layer stayed near, and whom the received model served badly.

        w_i = 1/2 ((1 - beta_i) / (N - 1) + gamma_i / sum_j gamma_j)
        beta_i = d_i / sum_j d_j,   d_i = ||Phi - Phi_i||,   gamma_i = sigmoid(GAP_i)

    Shapes: [cohort]. N counts the clients present; alone, a client has weight 1. Distances that sum to less than 1e-8
    count as equal, and so do gammas that have all underflowed.
    Reads: the updates of the layer, reports["gap"] [cohort] (`measures.training_gain`).
    layer: of Phi, a path or None, see `low_layer`; its bias is left out.   distance: "l2", or "cosine" 1 - cos.
    official_n_extra: models that the authors' code counts in N although they are no participants (1: the domain held
    out). The weights then sum to less than one, 5/6 for three clients: aggregate with `sum_of_models`.
    Raises InputError for an unknown distance, an unknown layer, and official_n_extra that is no count.
    FedRD: Reducing Divergences for Generalized Federated Learning; official code
    Kailee-WANG/NeurIPS25-FedRD, utils/fed_merge.py.
    """
    if distance not in DISTANCES:
        raise InputError(f"distance: unknown option '{distance}'. {nearest(distance, DISTANCES)}")

    def init(shared: Variables, num_clients: int) -> PyTree:
        low_layer(shared, layer)  # a wrong name is answered here, before anything runs
        return ()

    def update(state: PyTree, view: ServerView) -> tuple[Array, PyTree]:
        path = low_layer(view.received.shared, layer)
        start = traverse_util.flatten_dict(view.received.shared, sep="/")[path].ravel()
        (changes,) = jax.tree.leaves(view.updates.select(lambda one: one == path).tensors())
        distances = DISTANCES[distance](start, changes.reshape(changes.shape[0], -1))
        return guided_weights(distances, view.uploads.reports["gap"], view.is_present, official_n_extra), state

    return Weighting(init, update)


def guided_weights(distances: Array, gaps: Array, is_present: Array, official_n_extra: int = 0) -> Array:
    """[cohort] from d_i and GAP_i, see `parameter_guided`."""
    num_models = jnp.sum(is_present) + official_n_extra
    near = (1 - shares(distances, is_present, NEGLIGIBLE, official_n_extra)) / jnp.maximum(num_models - 1, 1)
    served_badly = shares(jax.nn.sigmoid(gaps), is_present)
    weights = jnp.where(num_models > 1, (near + served_badly) / 2, 1)
    return jnp.where(is_present, weights, 0)


def shares(values: Array, is_present: Array, negligible: float = 0.0, num_extra: int = 0) -> Array:
    """[cohort]: each one's part of the total over those present; equal parts where that is negligible."""
    values = jnp.where(is_present, values, 0)
    total = jnp.sum(values)
    is_something = total > negligible
    equal = 1 / jnp.maximum(jnp.sum(is_present) + num_extra, 1)
    return jnp.where(is_something, values / jnp.where(is_something, total, 1), equal)
