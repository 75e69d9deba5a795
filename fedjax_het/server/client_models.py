"""The latest models of all clients, which the server keeps."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedjax_het import tree
from fedjax_het.algorithm import Problem, Summary
from fedjax_het.types import Array, Params, PyTree, ServerView, UpdateStack, Variables
from fedjax_het.validation import Positive, validate_arguments


class ClientModels(NamedTuple):
    """The latest shared variables of all clients, as the server received them.

    Args:
        models: Leaves [clients, ...]; at first the initial model.
        is_known: Whether the client has sent one.
    """

    models: Variables
    is_known: Bool[Array, "clients"]


def latest_models(num_sent: int | None = None) -> Summary:
    """The ClientModels of all clients, for rules that mix them. The report of the same name is not read.

    Args:
        num_sent: The number of models that a client is sent, for the cost of communication.
    """

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> ClientModels:
        return ClientModels(tree.broadcast(shared, num_clients), jnp.zeros(num_clients, bool))

    def own_part(published: ClientModels) -> PyTree:
        number = min(num_sent or 1, len(published.is_known))
        return tree.take(published.models, slice(number))

    return Summary(init, _receive, reads="tensors", own_part=own_part)


def _receive(old: ClientModels, reports: UpdateStack, view: ServerView) -> ClientModels:
    def replace(kept: Array, received: Array, update: Array) -> Array:
        is_new = tree.add_axes(view.is_present, update.ndim)
        return kept.at[view.cohort].set(jnp.where(is_new, received + update, kept[view.cohort]).astype(kept.dtype))

    models = jax.tree.map(replace, old.models, view.received.shared, view.updates.tensors())
    known = old.is_known.at[view.cohort].set(view.is_present | old.is_known[view.cohort])
    return ClientModels(models, known)


def affinity_of_clients() -> Summary:
    """[clients, clients]: the sum of all that client i has reported about each other client, at first 0 (FedFomo).

    Report: [clients].
    """

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> Array:
        return jnp.zeros((num_clients, num_clients))

    def update(old: Array, reports: UpdateStack, view: ServerView) -> Array:
        reported = jnp.where(view.is_present[:, None], reports.tensors(), 0)
        return old.at[view.cohort].add(reported.astype(old.dtype))

    return Summary(init, update, reads="tensors", own_part=lambda published: ())


# ---- critical parameters ---------------------------------------------------------------------------------------------
class CriticalModels(NamedTuple):
    """The latest models of all clients, the entries that are critical to them, and who collaborates in these.

    Args:
        clients: The models.
        masks: The critical entries of the parameters, leaves [clients, ...]; at first none.
        weights: Row i has the weights of the clients in the mean of client i's critical entries.
    """

    clients: ClientModels
    masks: Params
    weights: Float[Array, "clients clients"]


@validate_arguments
def critical_collaboration(beta: Positive = 100.0) -> Summary:
    """Let clients collaborate in their critical entries with those whose critical entries overlap most (FedCAC).

        o_ij = 1 - |m_i - m_j|_1 / (2 |m_i|_1),   threshold mean(o) + (r + 1)/beta (max(o) - mean(o)) over pairs i != j
        row i: equal weights of i and all j with o_ij at the threshold or above it

    r is the round, from 0. Only clients that have trained are compared; the others are alone.
    Report: the masks m_i, as the parameters of a client.

    Args:
        beta: The paper's β: from round beta on, clients collaborate with nobody.

    References:
        Wu et al., Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through Cautiously
        Aggressive Collaboration, ICCV 2023. arXiv:2309.11103; code kxzxvbk/Fling.
    """
    plain = latest_models()

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> CriticalModels:
        clients = plain.init(problem, shared, num_clients, cohort_size)
        masks = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, bool), clients.models["params"])
        return CriticalModels(clients, masks, jnp.eye(num_clients))

    def update(old: CriticalModels, reports: UpdateStack, view: ServerView) -> CriticalModels:
        clients = _receive(old.clients, reports, view)
        before = tree.take(old.masks, view.cohort)
        masks = tree.put(old.masks, view.cohort, tree.where(view.is_present, reports.tensors(), before))
        overlaps = overlaps_of(masks)
        threshold = collaboration_threshold(overlaps, clients.is_known, view.received.round, beta)
        is_pair = clients.is_known[:, None] & clients.is_known
        is_partner = (is_pair & (overlaps >= threshold)) | jnp.eye(len(overlaps), dtype=bool)
        weights = is_partner / jnp.sum(is_partner, axis=1, keepdims=True)
        return CriticalModels(clients, masks, weights.astype(old.weights.dtype))

    def own_part(published: CriticalModels) -> PyTree:
        return tree.take(published.clients.models, 0)

    return Summary(init, update, reads="tensors", own_part=own_part)


def overlaps_of(masks: Params) -> Float[Array, "clients clients"]:
    """o_ij of masks, leaves [clients, ...]; 0 where client i has no critical entry. See `critical_collaboration`."""

    def count(leaf: Array) -> Array:
        rows = leaf.reshape(len(leaf), -1).astype(float)
        return jnp.matmul(rows, rows.T, precision=jax.lax.Precision.HIGHEST)

    common = sum(map(count, jax.tree.leaves(masks)))
    sizes = jnp.diagonal(common)
    apart = sizes[:, None] + sizes - 2 * common
    return jnp.where(sizes[:, None] > 0, 1 - apart / (2 * tree.positive_or_one(sizes)[:, None]), 0)


def collaboration_threshold(overlaps: Array, is_known: Array, round: Array, beta: float) -> Array:
    """[]: the overlap from which clients collaborate; see `critical_collaboration`."""
    is_pair = is_known[:, None] & is_known & ~jnp.eye(len(overlaps), dtype=bool)
    mean = jnp.sum(jnp.where(is_pair, overlaps, 0)) / jnp.maximum(jnp.sum(is_pair), 1)
    largest = jnp.max(jnp.where(is_pair, overlaps, -jnp.inf), initial=-jnp.inf)
    largest = jnp.where(jnp.any(is_pair), largest, mean)
    return mean + (round + 1) / beta * (largest - mean)
