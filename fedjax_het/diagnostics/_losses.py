"""Diagnostics of losses: decomposition, loss by class, and loss landscape."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.diagnostics._toolkit import (
    BATCH,
    Diagnostic,
    Quantity,
    client_models,
    global_models,
    logits,
    mean_loss,
    over_rows,
)
from fedjax_het.labels import cross_entropies, is_counted
from fedjax_het.types import Array, Batch, Key, Named, Params, RoundSnapshot, Rows


class Decomposition(NamedTuple):
    """local + shift + aggregation = total. The paper reports absolute values of shift and aggregation."""

    local: Array
    shift: Array
    aggregation: Array
    total: Array


def decomposition(losses: Array, global_losses: Array, num_examples: Array) -> Decomposition:
    """Decompose the loss of the aggregated model, weighted by examples, by the stages of a round.

        local       = sum_i p_i L_i(w_i)
        shift       = sum_ij p_i p_j (L_j(w_i) - L_i(w_i))
        aggregation = sum_i p_i (L(w) - L(w_i)),   L(v) = sum_j p_j L_j(v)

    Losses are mean cross-entropies in evaluation mode, after one round from a common w.
    Difference from the paper: the last term of the printed Eq. 2 is L(w) - L_i(w_i), which violates the identity by
    exactly `shift`; the sentence below it has the form used here.

    Args:
        losses: [data, model], the loss of client i's model on client j's training data at [j, i].
        global_losses: [data], the loss of the aggregated model.
        num_examples: [data].

    References:
        Zeng et al., FedLD.
    """
    p = num_examples / jnp.sum(num_examples)
    own, overall = jnp.diag(losses), p @ losses
    total = p @ global_losses
    return Decomposition(p @ own, p @ (overall - own), total - p @ overall, total)


def decomposition_of_round(problem, snapshot: RoundSnapshot) -> Named:
    """{"local", "shift", "aggregation", "total", "absolute_shift", "absolute_aggregation"}, [] each, and "losses".

    For the round's cohort, weighted by training examples; losses [data, model] as in `decomposition`. With personal
    leaves, each client's model uses its own, and the aggregated model uses those of the client whose data it is
    evaluated on. Takes cohort (cohort + 1) evaluations on training data.
    """
    rows, counts = snapshot.data.train, jnp.where(snapshot.view.is_present, snapshot.view.uploads.num_examples, 0)

    def client_losses(model) -> Array:
        return jax.lax.map(lambda row: mean_loss(problem, model, snapshot, row), rows)

    losses = jax.lax.map(client_losses, client_models(snapshot)).T
    after = jax.lax.map(lambda pair: mean_loss(problem, pair[0], snapshot, pair[1]), (global_models(snapshot), rows))
    parts = decomposition(losses, after, counts)
    absolute = {"absolute_shift": jnp.abs(parts.shift), "absolute_aggregation": jnp.abs(parts.aggregation)}
    return parts._asdict() | absolute | {"losses": losses}


RADIUS, POINTS = 1.0, 11


def filter_normalised(key: Key, params: Params) -> Params:
    """A Gaussian direction with the filter norms of the model, zero for biases and norms.

    d_f <- d_f |w_f| / |d_f|, where f is the last axis of a kernel, the output channel.

    References:
        Li et al., Visualizing the Loss Landscape of Neural Nets, 2018.
    """
    leaves, structure = jax.tree.flatten(params)

    def direction(key: Key, weights: Array) -> Array:
        if weights.ndim < 2:
            return jnp.zeros_like(weights)
        drawn, axes = jax.random.normal(key, weights.shape, weights.dtype), tuple(range(weights.ndim - 1))
        lengths = [jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True)) for x in (weights, drawn)]
        return drawn * lengths[0] / tree.positive_or_one(lengths[1])

    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [direction(*pair) for pair in zip(keys, leaves, strict=True)])


def landscape_of_round(problem, snapshot: RoundSnapshot) -> Named:
    """{"clients": [cohort, 11, 11], "federation": [11, 11], "steps": [11]}: mean cross-entropy at w + a d_1 + b d_2.

    w: the server's model after the round, with each client's personal leaves; a, b from -1 to 1, directions from
    `filter_normalised`. Clients use their first 256 training examples; the federation is weighted by examples.
    """
    steps, models = jnp.linspace(-RADIUS, RADIUS, POINTS), global_models(snapshot)
    first, second = (filter_normalised(key, snapshot.shared["params"]) for key in jax.random.split(snapshot.key))
    rows = snapshot.data.train._replace(count=jnp.minimum(snapshot.data.train.count, BATCH))

    def loss_at(point: Array) -> Array:
        shift = tree.add(tree.scale(point[0], first), tree.scale(point[1], second))
        moved = tree.add(snapshot.shared["params"], shift)

        def client_loss(pair) -> Array:
            model, row = pair
            return mean_loss(problem, tree.merge(model, {"params": moved}), snapshot, row)

        return jax.lax.map(client_loss, (models, rows))

    grid = jnp.stack(jnp.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2)
    losses = jax.lax.map(loss_at, grid).T.reshape(-1, POINTS, POINTS)
    shares = jnp.where(snapshot.view.is_present, snapshot.view.uploads.num_examples, 0)
    federation = jnp.tensordot(shares / jnp.maximum(jnp.sum(shares), 1), losses, axes=1)
    return {"clients": losses, "federation": federation, "steps": steps}


def classes_of_round(problem, snapshot: RoundSnapshot) -> Named:
    """{"losses": [cohort, classes], "counts": [cohort, classes]}: mean cross-entropy of each client's trained model on
    its training examples of a class, NaN without examples; and their number. For masks, pixels are counted.
    """

    def class_losses(model, row: Rows) -> Array:
        first = lambda: problem.batch(snapshot.data, row.index, row.count, 0, 1)  # noqa: E731
        num_classes = jax.eval_shape(lambda: logits(problem, model, snapshot, first())).shape[-1]

        def add(total: Array, batch: Batch, number: Array) -> Array:
            labels = batch.labels
            outputs = logits(problem, model, snapshot, batch)
            losses = cross_entropies(outputs, labels)
            counted = (tree.add_axes(batch.mask, labels.ndim) * is_counted(labels)).astype(float)
            return total.at[:, labels].add(jnp.stack([losses * counted, counted]))

        return over_rows(problem, snapshot, row, add, jnp.zeros((2, num_classes), float))

    clients = client_models(snapshot), snapshot.data.train
    sums, counts = jnp.moveaxis(jax.lax.map(lambda pair: class_losses(*pair), clients), 1, 0)
    return {"losses": jnp.where(counts > 0, sums / jnp.maximum(counts, 1), jnp.nan), "counts": counts}


DIAGNOSTICS = {
    "decomposition": Diagnostic(
        decomposition_of_round,
        "Where the loss comes from",
        "local + shift + aggregation = total: what local training leaves, what other clients' data add to a client's "
        "model, and what aggregation adds to (or takes from) the mean of all models (FedLD, Eq. 2).",
        {"losses": Quantity("every client's model on every client's data", x_label="model of", y_label="data of")},
    ),
    "classes": Diagnostic(
        classes_of_round,
        "Which classes a client has learnt",
        "Each client's trained model on its own training examples of a class; empty where it has none (FedMGC, Fig. "
        "8).",
        {
            "losses": Quantity("loss per class", "classes", "class"),
            "counts": Quantity("training examples per class", "classes", "class", scale="amount", unit="examples"),
        },
    ),
    "landscape": Diagnostic(
        landscape_of_round,
        "The loss around the server's model",
        "Along two random directions, filter-normalised; 0, 0 is the model. The flatter, the better it bears what "
        "other data do to it (HarmoFL, Fig. 1).",
    ),
}
