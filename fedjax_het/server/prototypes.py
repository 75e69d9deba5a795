"""Prototypes that the server trains (FedTGP)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het._internal.random_order import draw_bits, sort_by_bits
from fedjax_het.algorithm import Problem, Summary
from fedjax_het.labels import cross_entropies
from fedjax_het.server.summaries import class_outline
from fedjax_het.types import Array, Key, PyTree, ServerView, UpdateStack, Variables
from fedjax_het.validation import Count, NonNegative, validate_arguments

_EXACT = jax.lax.Precision.HIGHEST
_CLOSE = 1e-12  # squared distance below which the gradient of the distance is 0


@validate_arguments
def trained_prototypes(
    learning_rate: NonNegative = 0.01,
    epochs: Count = 100,
    margin_threshold: NonNegative = 100.0,
    batch_size: Count = 10,
) -> Summary:
    """Prototypes of classes, trained to be near the clients' and far from one another (FedTGP).

        g_c = V relu(W e_c + a) + b,   trained by SGD on 1/B sum_b CE(-d_b, y_b) over the clients' prototypes p_b
        d_bc = |p_b - g_c| + margin 1[c = y_b],   margin = min(largest distance of a mean prototype to its nearest, xi)

    Classes that no client has also get a prototype. The server keeps the trained leaves between rounds; clients receive
    the g_c.
    Reports: {"means" [class, feature], "counts" [class]}; received: {"means", "is_known" [class]}, initially unknown.

    Args:
        learning_rate: The learning rate of SGD.
        epochs: The paper's S (100), passes over the prototypes of a round.
        margin_threshold: The paper's τ (100), written xi above.
        batch_size: The number of prototypes per step.

    Raises:
        InputError: The model has no outline (see `models.with_feature_shape`).

    References:
        Zhang et al., FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data
        and Model Heterogeneity in Federated Learning, AAAI 2024. arXiv:2401.03230; code TsingZ0/FedTGP.
    """

    def update(old: PyTree, reports: UpdateStack, view: ServerView) -> PyTree:
        assert view.key is not None
        reported, means = reports.tensors(), old["means"]
        is_there = view.is_present[:, None] & (reported["counts"] > 0)
        gap = min_gap(reported["means"], is_there)
        margin = jnp.minimum(jnp.max(jnp.where(jnp.isfinite(gap), gap, 0)), margin_threshold)
        margin = jnp.where(jnp.any(jnp.isfinite(gap)), margin, margin_threshold)
        drawing, training = jax.random.split(view.key)
        network = tree.where(old["is_drawn"], old["network"], _draw_network(drawing, means))
        labels = jnp.broadcast_to(jnp.arange(len(means)), is_there.shape)
        slots = view.cohort[:, None] * len(means) + labels
        points = _Points(*(x.reshape(-1, *x.shape[2:]) for x in (reported["means"], labels, is_there, slots)))
        network = _train(network, training, points, margin, learning_rate, epochs, batch_size)
        sent = {"means": apply_network(network).astype(means.dtype), "is_known": jnp.ones(len(means), bool)}
        return {"network": network, "is_drawn": jnp.ones((), bool), **sent}

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> PyTree:
        means = class_outline(shared)
        network = tree.zeros_like(jax.eval_shape(lambda: _draw_network(make_key(0), means)))
        sent = {"means": means, "is_known": jnp.zeros(len(means), bool)}
        return {"network": network, "is_drawn": jnp.zeros((), bool), **sent}

    return Summary(init, update, send=lambda kept: {name: kept[name] for name in ("means", "is_known")})


def _draw_network(key: Key, means: Array) -> PyTree:
    """{"embedding" [class, feature], "middle", "output": {"kernel" [feature, feature], "bias" [feature]}}."""
    embedding, middle, output = jax.random.split(key, 3)
    width = means.shape[1]

    def draw_layer(key: Key) -> PyTree:
        kernel = jax.random.normal(key, (width, width), means.dtype) / jnp.sqrt(width)
        return {"kernel": kernel.astype(means.dtype), "bias": jnp.zeros(width, means.dtype)}

    rows = jax.random.normal(embedding, means.shape, means.dtype)
    return {"embedding": rows, "middle": draw_layer(middle), "output": draw_layer(output)}


def apply_network(network: PyTree) -> Array:
    """The prototype of every class, [class, feature]."""
    middle, output = network["middle"], network["output"]
    hidden = jax.nn.relu(jnp.matmul(network["embedding"], middle["kernel"], precision=_EXACT) + middle["bias"])
    return jnp.matmul(hidden, output["kernel"], precision=_EXACT) + output["bias"]


def min_gap(prototypes: Array, is_there: Array) -> Array:
    """[class]: the distance of each class's mean prototype to the nearest other; infinite without another.

    Args:
        prototypes: [cohort, class, feature].
        is_there: Whether a client has the class, [cohort, class].
    """
    count = jnp.sum(is_there, axis=0)
    total = jnp.sum(jnp.where(is_there[..., None], prototypes, 0), axis=0)
    means, is_known = total / jnp.maximum(count, 1)[:, None], count > 0
    squares = jnp.sum(jnp.square(means[:, None] - means[None]), axis=-1)
    is_pair = is_known[:, None] & is_known[None] & ~jnp.eye(len(means), dtype=bool)
    return jnp.min(jnp.where(is_pair, jnp.sqrt(squares), jnp.inf), axis=1)


def prototype_loss(network: PyTree, points: Array, labels: Array, mask: Array, margin: Array) -> Array:
    """The mean cross-entropy of prototypes [batch, feature]; entries outside the mask [batch] are ignored."""
    targets = apply_network(network)
    squares = jnp.sum(jnp.square(points[:, None] - targets[None]), axis=-1)
    distances = jnp.sqrt(jnp.maximum(squares, _CLOSE)) + margin * jax.nn.one_hot(labels, len(targets))
    losses = cross_entropies(-distances, labels)
    return jnp.sum(mask * losses) / jnp.maximum(jnp.sum(mask), 1)


class _Points(NamedTuple):
    """The prototypes of all clients, one after the other."""

    means: Float[Array, "points feature"]
    labels: Int[Array, "points"]
    is_there: Bool[Array, "points"]
    slots: Int[Array, "points"]  # a number of the client and the class


def _train(
    network: PyTree,
    key: Key,
    points: _Points,
    margin: Array,
    learning_rate: float,
    epochs: int,
    batch_size: int,
) -> PyTree:
    """Train by SGD on the points that are there, in an order drawn in each epoch, by slot: independent of positions."""
    means, labels, is_there, slots = points
    num_batches, size = -(-jnp.sum(is_there) // batch_size), min(batch_size, len(means))
    means = jnp.where(is_there[:, None], means, 0)

    def run_epoch(number: Array, network: PyTree) -> PyTree:
        order = sort_by_bits(draw_bits(jax.random.fold_in(key, number), slots), is_there)

        def step(batch: Array, network: PyTree) -> PyTree:
            places = batch * size + jnp.arange(size)
            chosen = order[jnp.minimum(places, len(order) - 1)]
            mask = (is_there[chosen] & (places < len(order))).astype(means.dtype)
            gradient = jax.grad(prototype_loss)(network, means[chosen], labels[chosen], mask, margin)
            return jax.tree.map(lambda w, g: (w - learning_rate * g).astype(w.dtype), network, gradient)

        return jax.lax.fori_loop(0, num_batches, step, network)

    return jax.lax.fori_loop(0, epochs, run_epoch, network)
