"""Supervised losses: those of every kind of labels, focal and Dice, and the choice of the task's loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Term
from fedjax_het.errors import InputError
from fedjax_het.labels import LOSSES, batch_losses, check_classes, find_kind, is_counted, mean_over_labels
from fedjax_het.problem import ForwardPass, compares_examples
from fedjax_het.types import Array, ClientData
from fedjax_het.validation import NonNegative, Positive, validate_arguments

LabelLoss = Literal["auto", "cross_entropy", "cox", "bce", "coral", "mse", "mae", "huber"]


def cross_entropy(weight: NonNegative = 1.0) -> Term:
    """The loss that follows from the kind of labels, for classes softmax cross-entropy: `supervised("auto", weight)`.

    1/B sum_b -log softmax(z_b)[y_b]
    """
    return supervised("auto", weight)


@validate_arguments
def supervised(loss: LabelLoss = "auto", weight: NonNegative = 1.0) -> Term:
    """A loss of the labels, averaged over the examples of the batch and the labels of each.

    | `loss` | labels | loss of a label y for the output z |
    | --- | --- | --- |
    | `cross_entropy` | classes, also of pixels and positions | -log softmax(z)[y] |
    | `cox` | survival times | the negative partial log-likelihood within the batch, see `cox` |
    | `bce` | tags | -y log s(z) - (1 - y) log(1 - s(z)), s the logistic function |
    | `coral` | ranks 0 .. K-1 | the sum over k = 0 .. K-2 of `bce` for "y is above k" |
    | `mse`, `mae` | numbers | (z - y)^2, abs(z - y) |
    | `huber` | numbers | (z - y)^2 / 2 up to an error of 1, then abs(z - y) - 1/2 |

    Shapes: logits [batch, class] with labels [batch], [batch, height, width, class] with [batch, height, width], or
    [batch, length, class] with [batch, length]; the other outputs are [batch, tag], [batch, ranks - 1] and [batch,
    number]. The mean over sequences and tags is over all positions of the batch but padding, or all tags but unknown.
    Reads: outputs.logits.

    Args:
        loss: The loss. "auto": the one in the table for the kind of labels, for numbers "mse".
        weight: Factor of the term.

    Raises:
        InputError: The loss is unknown; when traced, it is not for these labels.

    References:
        coral: Cao, Mirjalili and Raschka, Rank Consistent Ordinal Regression for Neural Networks, Pattern Recognition
        Letters 2020. arXiv:1901.07884
    """
    return SupervisedLoss(weight, None if loss == "auto" else loss)


@dataclass(frozen=True, eq=False)
class SupervisedLoss:
    """The term of `supervised`, a separate type so that `with_task_loss` finds it."""

    weight: float
    loss: str | None

    @property
    def __name__(self) -> str:
        return self.loss or "cross_entropy"

    def compares_examples(self, labels: Array) -> bool:
        """Whether the loss of a batch is not the mean of those of its examples, see `problem.compares_examples`."""
        return LOSSES[self.loss or find_kind(labels).loss].is_of_batch

    def __call__(self, forward: ForwardPass) -> Array:
        labels, mask = forward.batch.labels, forward.batch.mask
        losses = batch_losses(forward.outputs.logits, labels, mask > 0, self.loss)
        return self.weight * mean_over_labels(losses, labels, mask)


def masked_mean(values: Array, mask: Array) -> Array:
    """Mean over examples except padding, and over all further axes; 0 without examples."""
    per_example = values.reshape(values.shape[0], -1).mean(axis=1)
    return jnp.sum(mask * per_example) / jnp.maximum(jnp.sum(mask), 1)


def count_classes(data: ClientData, num_classes: int) -> Array:
    """[class]: the client's number of training examples per class, or of labeled pixels or positions."""
    check_classes(data.examples.labels)
    labels = data.examples.read_labels(data.train.index)
    is_example = jnp.arange(labels.shape[0]) < data.train.count
    is_label = tree.add_axes(is_example, labels.ndim) & is_counted(labels)
    return jnp.zeros(num_classes, float).at[labels.ravel()].add(is_label.ravel().astype(float))


def focal_losses(logits: Array, labels: Array, gamma: float, beta: float) -> Array:
    """-beta (1 - p_t)^gamma log p_t of each example, p_t the softmax probability of its class: [..., class] -> [...].

    With a = log sum_{c != y} exp z_c - z_y, both factors are smooth: -log p_t = softplus(a) and 1 - p_t =
    exp(-softplus(-a)). So 1 - p_t stays accurate where p_t rounds to 1, and the gradient is finite for every gamma,
    while that of (1 - p_t)^gamma is infinity times 0.
    """
    is_true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    others = jax.nn.logsumexp(jnp.where(is_true, -jnp.inf, logits), axis=-1)
    deficit = others - jnp.sum(jnp.where(is_true, logits, 0), axis=-1)
    return beta * jax.nn.softplus(deficit) * jnp.exp(-gamma * jax.nn.softplus(-deficit))


@validate_arguments
def focal(gamma: NonNegative = 0.5, beta: NonNegative = 1.5, weight: NonNegative = 1.0) -> Term:
    """Focal loss, averaged over the examples of the batch (and the pixels of each).

        1/B sum_b -beta (1 - p_b)^gamma log p_b,   p_b = softmax(z_b)[y_b]

    Shapes: as `cross_entropy`, at least two classes.
    Reads: outputs.logits.

    Args:
        gamma: The paper's γ (grid .1 / .2 / .5 / 1). The selected values are not reported; the default is mid-grid.
        beta: The paper's β, with grid 1 / 1.2 / 1.5 / 2, likewise. gamma=0 with beta=1 is cross-entropy.
        weight: Factor of the term.

    Raises:
        InputError: A negative gamma or beta.

    References:
        FedMGC; no code was released.
    """

    def focal(forward: ForwardPass) -> Array:
        check_classes(forward.batch.labels)
        losses = focal_losses(forward.outputs.logits, forward.batch.labels, gamma, beta)
        return weight * mean_over_labels(losses, forward.batch.labels, forward.batch.mask)

    return focal


def soft_dice(logits: Array, labels: Array, mask: Array, smooth: float = 1e-5) -> Array:
    """1 - mean over classes of the soft Dice coefficient of the whole batch.

        1 - 1/C sum_c (2 sum p_c t_c + s) / (sum p_c + sum t_c + s),   p = softmax(z), t = one-hot(y)

    Shapes: logits [batch, height, width, class], labels [batch, height, width], mask [batch]. Background is a class.
    """
    weight = tree.add_axes(mask, logits.ndim)
    return dice_loss(
        weight * jax.nn.softmax(logits), weight * jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype), smooth
    )


def dice_loss(probability: Array, truth: Array, smooth: float = 1e-5) -> Array:
    """1 - mean over classes of (2 sum p t + s) / (sum p + sum t + s), both [..., class]."""
    axes = tuple(range(probability.ndim - 1))
    overlap = jnp.sum(probability * truth, axis=axes)
    total = jnp.sum(probability, axis=axes) + jnp.sum(truth, axis=axes)
    return 1.0 - jnp.mean((2.0 * overlap + smooth) / (total + smooth))


@validate_arguments
def dice(weight: NonNegative = 1.0, smooth: NonNegative = 1e-5) -> Term:
    """Soft Dice loss over the whole batch, background included; see `soft_dice`.

    HarmoFL's joint loss is (cross_entropy(0.5), dice(0.5)).
    Reads: outputs.logits.

    Args:
        weight: Factor of the term.
        smooth: Smoothing term s (1e-5 in the code).

    References:
        Jiang et al., HarmoFL, AAAI 2022; official code med-air/HarmoFL, utils/loss.py.
    """

    @compares_examples
    def dice(forward: ForwardPass) -> Array:
        check_classes(forward.batch.labels)
        return weight * soft_dice(forward.outputs.logits, forward.batch.labels, forward.batch.mask, smooth)

    return dice


@validate_arguments
def cox(weight: NonNegative = 1.0) -> Term:
    """Negative partial log-likelihood of the Cox survival model, averaged over the examples of the batch.

        1/B sum_i e_i (log sum_{j in batch: t_j >= t_i} exp r_j - r_i),   r = z_1 - z_0

    The examples at risk are those of the batch, as in FLamby's code, which differs for tied times: only those that come
    earlier in the batch are then at risk.
    Shapes: logits [batch, 2], labels that are survival times, see `fedjax_het.labels`.
    Reads: outputs.logits.

    Args:
        weight: Factor of the term.

    Raises:
        InputError: When traced, labels are not survival times, or the model does not have two outputs.

    References:
        Cox, Regression Models and Life-Tables, 1972. FLamby: arXiv:2210.04620
    """
    return supervised("cox", weight)


@validate_arguments
def weighted_bce(positive_weight: Sequence[Positive] | None = None, weight: NonNegative = 1.0) -> Term:
    """Binary cross-entropy of tags with a weight for the examples that have them, averaged over all known tags.

        1/K sum_bl -p_l y_bl log s(z_bl) - (1 - y_bl) log(1 - s(z_bl)),   K: the number of known tags of the batch

    Shapes: outputs and labels [batch, tag].
    Reads: outputs.logits, the client's training labels.

    Args:
        positive_weight: p_l of each tag. None: the client's training examples without the tag per example with it, at
            most their number.
        weight: Factor of the term.

    Raises:
        InputError: A weight is not positive; when traced, labels are not tags, or their number is another.
    """
    given = None if positive_weight is None else jnp.asarray(positive_weight, jnp.float32)

    def weighted_bce(forward: ForwardPass) -> Array:
        labels, outputs = forward.batch.labels, forward.outputs.logits
        losses = batch_losses(outputs, labels, forward.batch.mask > 0, "bce")
        factors = _balance_tags(forward.view.data) if given is None else given
        if factors.shape != labels.shape[1:]:
            raise InputError(f"positive_weight: {len(factors)} weights for {labels.shape[1]} tags. Give each its own.")
        losses = jnp.where(labels > 0, factors.astype(outputs.dtype) * losses, losses)
        return weight * mean_over_labels(losses, labels, forward.batch.mask)

    return weighted_bce


def _balance_tags(data: ClientData) -> Array:
    """[tag]: the client's training examples without the tag for each with it."""
    labels = data.examples.labels[data.train.index]
    is_example = (jnp.arange(labels.shape[0]) < data.train.count)[:, None]
    has, lacks = (jnp.sum(jnp.where(is_example, labels == value, 0), axis=0) for value in (1, 0))
    return lacks / jnp.maximum(has, 1)


TaskLoss = Literal[
    "auto", "cross_entropy", "dice", "joint", "cox", "bce", "weighted_bce", "coral", "mse", "mae", "huber"
]
TASK_LOSSES: dict[TaskLoss, tuple[Term, ...]] = {
    "auto": (supervised("auto"),),
    "cross_entropy": (supervised("cross_entropy"),),
    "dice": (dice(),),
    "joint": (cross_entropy(0.5), dice(0.5)),
    "cox": (cox(),),
    "bce": (supervised("bce"),),
    "weighted_bce": (weighted_bce(),),
    "coral": (supervised("coral"),),
    "mse": (supervised("mse"),),
    "mae": (supervised("mae"),),
    "huber": (supervised("huber"),),
}
"""joint: the mean of both, HarmoFL's for segmentation (official code med-air/HarmoFL, utils/loss.py)."""


@validate_arguments
def with_task_loss(objective: tuple[Term, ...], task_loss: TaskLoss) -> tuple[Term, ...]:
    """An objective whose loss of the labels is replaced by another of TASK_LOSSES.

    Args:
        objective: The terms of an algorithm.
        task_loss: One of TASK_LOSSES. "auto" keeps the objective, whose loss follows from the kind of labels.

    Raises:
        InputError: The name is unknown, or the objective has no `supervised` term because its loss is the algorithm's
            own.
    """
    if task_loss == "auto":
        return objective
    if not any(isinstance(term, SupervisedLoss) for term in objective):
        own = ", ".join(term.__name__ for term in objective)
        raise InputError(
            f"task_loss: '{task_loss}' cannot replace the loss of this algorithm ({own}). Use task_loss='auto', or "
            "another algorithm."
        )
    replacements = (TASK_LOSSES[task_loss] if isinstance(term, SupervisedLoss) else (term,) for term in objective)
    return tuple(term for terms in replacements for term in terms)
