"""Survival times: the loss of Cox's model, and the concordance of risks and times."""

import jax
import jax.numpy as jnp

from fedjax_het.errors import InputError
from fedjax_het.types import Array


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
