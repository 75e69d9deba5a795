"""What the server's model makes of a few images, beside their true masks (HarmoFL, Fig. 4)."""

import jax
import jax.numpy as jnp

from fedjax_het.diagnostics.pictured import pictured
from fedjax_het.diagnostics.seen import logits
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Batch, Named, RoundSnapshot, Variables


def of_round(problem, look: RoundSnapshot) -> Named:
    """{"images": float16 [clients, images, height, width, channel], "true", "predicted": [clients, images, height,
    width], "is_image": [clients, images]}: test images as the model takes them, the class of each pixel, and the class
    to which the server's new model, with the client's own leaves, gives the largest logit.

    Reads: data.test. Raises InputError for labels that are no masks, and as `pictured` does.
    """
    if look.data.examples.labels.ndim < 3:
        raise InputError(
            "diagnostics: 'contours' is for masks [height, width], and these examples have one label each. Leave it "
            "out, or give data with masks."
        )
    models, batches = pictured(problem, look, "contours")

    def predicted(each: tuple[Variables, Batch]) -> Array:
        model, batch = each
        return jnp.argmax(logits(problem, model, look, batch), axis=-1)

    return {
        "images": batches.inputs.astype(jnp.float16),
        "true": batches.labels,
        "predicted": jax.lax.map(predicted, (models, batches)).astype(batches.labels.dtype),
        "is_image": batches.mask > 0,
    }
