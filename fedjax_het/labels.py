"""Kinds of labels: classes of examples, pixels or positions of sequences with padding, and survival times.

Labels are [batch] (a class per example), [batch, length] (a class per position of a sequence) or [batch, height, width]
(a class per pixel), integers. Only labels of sequences may be negative: a position with the label `PADDING` is no
position. Labels [batch] that are floats are times until an event: 1 + t where the event was seen at t, -(1 + t) where
there was none until t, when the example was seen last (censored); t >= 0.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_het.errors import InputError
from fedjax_het.types import Array, HostArray

PADDING = -1
_SEQUENCE_AXES = 2


def are_of_sequences(labels: HostArray) -> bool:
    """Whether labels are of sequences, one class per position."""
    return labels.ndim == _SEQUENCE_AXES


def are_tokens(inputs: HostArray) -> bool:
    """Whether inputs are sequences of tokens."""
    return jnp.issubdtype(inputs.dtype, jnp.signedinteger)


def are_times(labels: HostArray) -> bool:
    """Whether labels are survival times."""
    return jnp.issubdtype(labels.dtype, jnp.floating)


def check_classes(labels: HostArray) -> None:
    """Raise InputError for survival times."""
    if are_times(labels):
        raise InputError(
            "the labels are survival times, and a part of this algorithm reads classes. Set task_loss='cox', with "
            "an algorithm that reads no labels but in its cross-entropy, such as fedavg."
        )


def cross_entropies(logits: Array, labels: Array) -> Array:
    """Softmax cross-entropy of every label: logits [..., class] -> [...]; of padding, a number without meaning.

    Raises:
        InputError: The labels are survival times.
    """
    check_classes(labels)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def risks(logits: Array) -> Array:
    """The logarithm of the hazard, up to a constant: the logit of an event less that of none, [batch, 2] -> [batch]."""
    if logits.ndim != 2 or logits.shape[-1] != 2:
        raise InputError(f"survival times need a model of two classes, not logits of shape {logits.shape}.")
    return logits[:, 1] - logits[:, 0]


def cox_losses(logits: Array, labels: Array, is_example: Array) -> Array:
    """The negative partial log-likelihood of Cox's model within a batch: [batch], 0 for the censored and for padding.

        l_i = e_i (log sum_{j: t_j >= t_i} exp r_j - r_i),   e_i = 1 for an event, r: `risks`

    Args:
        logits: [batch, 2].
        labels: Times of survival, [batch].
        is_example: [batch] bool, False for padding.
    """
    risk, time = risks(logits), jnp.abs(labels)
    is_at_risk = (time[None, :] >= time[:, None]) & is_example[None, :]
    total = jax.nn.logsumexp(jnp.where(is_at_risk, risk[None, :], -jnp.inf), axis=1)
    return jnp.where((labels > 0) & is_example, total - risk, 0)


def concordance(logits: Array, labels: Array, is_example: Array) -> tuple[Array, Array]:
    """Harrell's C-index of the examples of a batch: the share of comparable pairs that the risks order rightly.

    A pair is comparable if the one with the shorter time had an event, or if of equal times one had an event and the
    other not; equal risks count one half.

    Args:
        logits: [batch, 2].
        labels: Times of survival, [batch].
        is_example: [batch] bool, False for padding.

    Returns:
        (The C-index, 0 where no pair is comparable; whether a pair is), both [].
    """
    risk, time, has_event = risks(logits), jnp.abs(labels), labels > 0
    is_later = (time[None, :] > time[:, None]) | ((time[None, :] == time[:, None]) & ~has_event[None, :])
    is_pair = (has_event & is_example)[:, None] & is_later & is_example[None, :]
    wins = (risk[:, None] > risk[None, :]) + 0.5 * (risk[:, None] == risk[None, :])
    num_pairs = jnp.sum(is_pair)
    return jnp.sum(jnp.where(is_pair, wins, 0)) / jnp.maximum(num_pairs, 1), num_pairs > 0


def is_counted(labels: Array) -> Array:
    """Whether each label counts: False for the padding of sequences. Of the shape of `labels`, bool."""
    return labels >= 0


def flatten_positions(values: Array, labels: Array, mask: Array) -> tuple[Array, Array]:
    """Make every position of sequences an example: values [batch * length, ...], and their mask, 0 for padding.

    Values and mask of other labels are returned as they are.

    Args:
        values: The values of the model, [batch, length, ...] for sequences.
        labels: The labels.
        mask: 1 for an example, 0 for padding, [batch].
    """
    if not are_of_sequences(labels):
        return values, mask
    return values.reshape(-1, *values.shape[2:]), (mask[:, None] * is_counted(labels)).reshape(-1)


def mean_per_example(values: Array, labels: Array) -> Array:
    """Average the values of each example over its labels, those of padding left out: [batch, ...] -> [batch].

    Args:
        values: One number per label, of the shape of `labels`.
        labels: The labels.

    Returns:
        The means; 0 for a sequence that is all padding.
    """
    if not are_of_sequences(labels):
        return values.reshape(values.shape[0], -1).mean(axis=1)
    counted = is_counted(labels)
    return jnp.sum(jnp.where(counted, values, 0), axis=1) / jnp.maximum(jnp.sum(counted, axis=1), 1)


def mean_over_labels(values: Array, labels: Array, mask: Array) -> Array:
    """Average over all labels that count of the examples whose mask is 1; 0 where there is none.

    Args:
        values: One number per label, of the shape of `labels`.
        labels: The labels.
        mask: 1 for an example, 0 for padding, [batch].

    Raises:
        InputError: The labels are survival times.
    """
    check_classes(labels)
    if are_of_sequences(labels):
        counted = mask[:, None] * is_counted(labels)
        return jnp.sum(jnp.where(counted > 0, values, 0)) / jnp.maximum(jnp.sum(counted), 1)
    return jnp.sum(mask * mean_per_example(values, labels)) / jnp.maximum(jnp.sum(mask), 1)
