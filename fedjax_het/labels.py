"""Kinds of labels, and the losses, the predictions and the means that follow from the kind.

The shape and the type of labels determine their kind, see `KINDS`: classes of examples, positions of sequences or
pixels, survival times, several yes/no labels per example (tags), ordered classes (ranks) and real numbers. Only labels
of sequences and tags may be negative: a position with the label `PADDING` is no position, and such a tag is unknown.
Survival times are 1 + t where the event was seen at t, -(1 + t) where there was none until t, when the example was seen
last (censored); t >= 0.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from fedjax_het.errors import InputError
from fedjax_het.survival import cox_losses
from fedjax_het.types import Array, HostArray

PADDING = -1
KindName = Literal["classes", "sequences", "masks", "times", "tags", "ranks", "numbers"]


class Kind(NamedTuple):
    """What follows from the kind of labels.

    Attributes:
        name: The name.
        title: The name in messages.
        description: The labels of an example.
        dtype: The stored type.
        num_axes: The number of axes of labels.
        model: The networks whose outputs fit.
        loss: The default loss, see `LOSSES`.
        decide: Outputs [..., output] -> predicted labels, for NumPy and JAX; None for real numbers.
        score: The name of the main score.
        metrics: Metrics that every evaluation computes unless others are requested.
        has_classes: Whether the outputs are logits of classes, of which one is true.
        is_partial: Whether negative labels do not count. Means are then over labels instead of examples.
    """

    name: KindName
    title: str
    description: str
    dtype: type[np.generic]
    num_axes: int
    model: str
    loss: str = "cross_entropy"
    decide: Callable[[Any], Any] | None = lambda outputs: outputs.argmax(-1)
    score: str = "accuracy"
    metrics: tuple[str, ...] = ()
    has_classes: bool = True
    is_partial: bool = False


_CLASSIFIER = "a model for classification; of sequences, one with outputs='last'"
_KINDS = (
    Kind("classes", "classes", "one class for each example", np.int32, 1, _CLASSIFIER),
    Kind(
        "sequences",
        title="sequences of classes",
        description="a class for each position of a sequence",
        dtype=np.int32,
        num_axes=2,
        model="a model of sequences with outputs='every', such as lstm",
        is_partial=True,
    ),
    Kind(
        "masks",
        title="masks",
        description="masks, a class for each pixel",
        dtype=np.uint8,
        num_axes=3,
        model="a model for segmentation, such as unet",
        score="dice",
    ),
    Kind(
        "times",
        title="survival times",
        description="a survival time for each example",
        dtype=np.float32,
        num_axes=1,
        model=_CLASSIFIER,
        loss="cox",
        decide=None,
        has_classes=False,
    ),
    Kind(
        "tags",
        title="tags",
        description="several tags for each example",
        dtype=np.int8,
        num_axes=2,
        model="a model with one output per tag",
        loss="bce",
        decide=lambda outputs: (outputs > 0).astype(np.int8),
        score="mean_average_precision",
        metrics=("mean_average_precision", "macro_f1", "micro_f1"),
        has_classes=False,
        is_partial=True,
    ),
    Kind(
        "ranks",
        title="ranks",
        description="one rank for each example",
        dtype=np.int8,
        num_axes=1,
        model="fedjax_het.models.ordinal, which gives a model an output for each rank but the lowest",
        loss="coral",
        decide=lambda outputs: (outputs > 0).sum(-1),
        score="quadratic_kappa",
        metrics=("quadratic_kappa", "rank_mae"),
        has_classes=False,
    ),
    Kind(
        "numbers",
        title="numbers",
        description="one or several numbers for each example",
        dtype=np.float32,
        num_axes=2,
        model="a model with one output per number",
        loss="mse",
        decide=None,
        score="r2",
        metrics=("r2", "rmse", "mae"),
        has_classes=False,
    ),
)
KINDS: dict[KindName, Kind] = {kind.name: kind for kind in _KINDS}


def find_kind(labels: HostArray) -> Kind:
    """The kind of labels, by their type and number of axes."""
    is_real, is_small = jnp.issubdtype(labels.dtype, jnp.floating), labels.dtype == np.int8
    names: tuple[KindName, ...] = ("classes", "sequences", "masks")
    if is_real or is_small:
        names = ("times", "numbers") if is_real else ("ranks", "tags")
    if not 1 <= labels.ndim <= len(names):
        raise InputError(f"labels of type {labels.dtype} and shape {labels.shape} are of no known kind.")
    return KINDS[names[labels.ndim - 1]]


def are_tokens(inputs: HostArray) -> bool:
    """Whether inputs are sequences of tokens."""
    return jnp.issubdtype(inputs.dtype, jnp.signedinteger)


def check_classes(labels: HostArray) -> None:
    """Raise InputError for labels whose outputs are not logits of classes."""
    kind = find_kind(labels)
    if not kind.has_classes:
        raise InputError(
            f"the labels are {kind.title}, and a part of this algorithm reads classes. Use an algorithm that "
            f"reads no labels but in its loss, such as fedavg, with task_loss='auto' or '{kind.loss}'."
        )


# ---- losses ----------------------------------------------------------------------------------------------------------
def cross_entropies(logits: Array, labels: Array) -> Array:
    """Softmax cross-entropy of every label: logits [..., class] -> [...]; of padding, a number without meaning.

    A label is compared with all classes, since the transpose of a gather is a scatter, which few devices do fast.

    Raises:
        InputError: The labels are no classes, or there is a single logit.
    """
    check_classes(labels)
    if logits.shape[-1] < 2:
        raise InputError("classes need a model with a logit for each, not with a single output.")
    shifted = logits - lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    is_label = labels[..., None] == jnp.arange(logits.shape[-1])
    return jnp.log(jnp.exp(shifted).sum(axis=-1)) - jnp.where(is_label, shifted, 0).sum(axis=-1)


def binary_cross_entropies(logits: Array, labels: Array) -> Array:
    """Binary cross-entropy of every tag: logits and labels [batch, tag] -> [batch, tag]; of unknown tags, 0."""
    losses = optax.sigmoid_binary_cross_entropy(logits, (labels > 0).astype(logits.dtype))
    return jnp.where(is_counted(labels), losses, 0)


def coral_losses(logits: Array, labels: Array) -> Array:
    """CORAL's loss of every rank: logits [batch, ranks - 1] of "the rank is above k" -> [batch], sums over k."""
    is_above = labels[:, None] > jnp.arange(logits.shape[-1])
    return jnp.sum(optax.sigmoid_binary_cross_entropy(logits, is_above.astype(logits.dtype)), axis=-1)


class Loss(NamedTuple):
    """A loss of labels.

    Attributes:
        kinds: The kinds of labels that it is for.
        measure: (outputs, labels, [batch] bool, False for padding) -> a value per label, or per example.
        is_of_batch: Whether values depend on the other examples of the batch.
    """

    kinds: tuple[KindName, ...]
    measure: Callable[[Array, Array, Array], Array]
    is_of_batch: bool = False


LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(("classes", "sequences", "masks"), lambda z, y, is_example: cross_entropies(z, y)),
    "cox": Loss(("times",), cox_losses, is_of_batch=True),
    "bce": Loss(("tags",), lambda z, y, is_example: binary_cross_entropies(z, y)),
    "coral": Loss(("ranks",), lambda z, y, is_example: coral_losses(z, y)),
    "mse": Loss(("numbers",), lambda z, y, is_example: jnp.square(z - y)),
    "mae": Loss(("numbers",), lambda z, y, is_example: jnp.abs(z - y)),
    "huber": Loss(("numbers",), lambda z, y, is_example: optax.huber_loss(z, y)),
}
"""Losses by name; "huber" is quadratic up to an error of 1."""


def batch_losses(outputs: Array, labels: Array, is_example: Array, name: str | None = None) -> Array:
    """The loss of every label of a batch, [...] as labels, or of every example, [batch].

    Args:
        outputs: The outputs of the model.
        labels: The labels.
        is_example: [batch] bool, False for padding, whose losses are without meaning.
        name: One of `LOSSES`; None: the default of the kind.

    Raises:
        InputError: The loss is not for this kind of labels.
    """
    kind = find_kind(labels)
    loss = LOSSES[name or kind.loss]
    if kind.name not in loss.kinds:
        fitting = ", ".join(other for other, candidate in LOSSES.items() if kind.name in candidate.kinds)
        wanted = " or ".join(KINDS[other].title for other in loss.kinds)
        raise InputError(
            f"task_loss: '{name}' is for {wanted}, but the labels are {kind.title}. Use 'auto' or {fitting}."
        )
    return loss.measure(outputs, labels, is_example)


def example_losses(outputs: Array, labels: Array) -> Array:
    """The default loss of every label, [...] as labels, or of every example, [batch].

    Raises:
        InputError: Losses of single examples do not exist for this kind of labels.
    """
    if LOSSES[find_kind(labels).loss].is_of_batch:
        check_classes(labels)
    return batch_losses(outputs, labels, jnp.ones(labels.shape[0], bool))


# ---- means over labels -----------------------------------------------------------------------------------------------
def is_counted(labels: Array) -> Array:
    """Whether each label counts: False for the padding of sequences and unknown tags. Of the shape of labels, bool."""
    return labels >= 0


def flatten_positions(values: Array, labels: Array, mask: Array) -> tuple[Array, Array]:
    """Make every position of sequences an example: values [batch * length, ...], and their mask, 0 for padding.

    Values and mask of other labels are returned as they are.

    Args:
        values: The values of the model, [batch, length, ...] for sequences.
        labels: The labels.
        mask: 1 for an example, 0 for padding, [batch].
    """
    if find_kind(labels).name != "sequences":
        return values, mask
    return values.reshape(-1, *values.shape[2:]), (mask[:, None] * is_counted(labels)).reshape(-1)


def mean_per_example(values: Array, labels: Array) -> Array:
    """Average the values of each example over its labels that count: [batch, ...] -> [batch].

    Args:
        values: One number per label, of the shape of `labels`, or one per example.
        labels: The labels.

    Returns:
        The means; 0 where no label counts.
    """
    if not find_kind(labels).is_partial:
        return values.reshape(values.shape[0], -1).mean(axis=1)
    counted = is_counted(labels)
    return jnp.sum(jnp.where(counted, values, 0), axis=1) / jnp.maximum(jnp.sum(counted, axis=1), 1)


def mean_over_labels(values: Array, labels: Array, mask: Array) -> Array:
    """Average over all labels that count of the examples whose mask is 1; 0 where there is none.

    Args:
        values: One number per label, of the shape of `labels`, or one per example.
        labels: The labels.
        mask: 1 for an example, 0 for padding, [batch].
    """
    if find_kind(labels).is_partial:
        counted = mask[:, None] * is_counted(labels)
        return jnp.sum(jnp.where(counted > 0, values, 0)) / jnp.maximum(jnp.sum(counted), 1)
    return jnp.sum(mask * mean_per_example(values, labels)) / jnp.maximum(jnp.sum(mask), 1)
