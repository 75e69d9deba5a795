"""The task loss of classification and of segmentation."""

import jax.numpy as jnp
import optax

from fedjax_het.algorithm import Term
from fedjax_het.types import Array, ForwardPass
from fedjax_het.validation import NonNegative, validate_arguments


@validate_arguments
def cross_entropy(weight: NonNegative = 1.0) -> Term:
    """Softmax cross-entropy, averaged over the examples of the batch (and the pixels of each).

        1/B sum_b -log softmax(z_b)[y_b]

    Shapes: logits [batch, class] with labels [batch], or [batch, height, width, class] with [batch, height, width].
    Reads: outputs.logits.   weight: factor of the term.
    """

    def cross_entropy(forward: ForwardPass) -> Array:
        losses = optax.softmax_cross_entropy_with_integer_labels(forward.outputs.logits, forward.batch.labels)
        return weight * masked_mean(losses, forward.batch.mask)

    cross_entropy.is_task_loss = True  # `with_task_loss` may put another in its place
    return cross_entropy


def masked_mean(values: Array, mask: Array) -> Array:
    """Mean over the examples that are not padding, and over all further axes; 0 where there is no example."""
    per_example = values.reshape(values.shape[0], -1).mean(axis=1)
    return jnp.sum(mask * per_example) / jnp.maximum(jnp.sum(mask), 1)
