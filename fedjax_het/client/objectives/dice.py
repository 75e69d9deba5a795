"""Overlap losses for segmentation (HarmoFL)."""

import jax
import jax.numpy as jnp

from fedjax_het.algorithm import Term
from fedjax_het.types import Array, ForwardPass
from fedjax_het.validation import NonNegative, validate_arguments


def soft_dice(logits: Array, labels: Array, mask: Array, smooth: float = 1e-5) -> Array:
    """1 - mean over classes of the soft Dice coefficient of the whole batch.

        1 - 1/C sum_c (2 sum p_c t_c + s) / (sum p_c + sum t_c + s),   p = softmax(z), t = one-hot(y)

    Shapes: logits [batch, height, width, class], labels [batch, height, width], mask [batch]. Background counts.
    """
    weight = mask.reshape(mask.shape + (1,) * (logits.ndim - 1))
    probability = weight * jax.nn.softmax(logits)
    truth = weight * jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    axes = tuple(range(logits.ndim - 1))
    overlap = jnp.sum(probability * truth, axis=axes)
    total = jnp.sum(probability, axis=axes) + jnp.sum(truth, axis=axes)
    return 1.0 - jnp.mean((2.0 * overlap + smooth) / (total + smooth))


@validate_arguments
def dice(weight: NonNegative = 1.0, smooth: NonNegative = 1e-5) -> Term:
    """Soft Dice loss over the whole batch, background included; see `soft_dice`.

    HarmoFL's joint loss is (cross_entropy(0.5), dice(0.5)).   Reads: outputs.logits.   smooth: the code's 1e-5.
    Jiang et al., HarmoFL, AAAI 2022; official code med-air/HarmoFL, utils/loss.py.
    """

    def dice(forward: ForwardPass) -> Array:
        return weight * soft_dice(forward.outputs.logits, forward.batch.labels, forward.batch.mask, smooth)

    return dice
