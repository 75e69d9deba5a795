"""What amplitude normalisation makes of a few images (HarmoFL, Fig. 2)."""

import jax
import jax.numpy as jnp

from fedjax_het.diagnostics.pictured import pictured
from fedjax_het.diagnostics.seen import encoded
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Batch, Named, RoundSnapshot, Variables


def of_round(problem, look: RoundSnapshot) -> Named:
    """{"images", "normalised": float16 [clients, images, height, width, channel], "is_image": [clients, images]}: test
    images as the model takes them, and Psi(x) with the average amplitude after the round.

    Reads: data.test, and outputs.extras["normalised"] of a pass in evaluation mode.
    Raises InputError for a model that normalises no images, and as `pictured` does.
    """
    models, batches = pictured(problem, look, "normalisation")

    def normalised(each: tuple[Variables, Batch]) -> Array:
        model, batch = each
        _, extras = encoded(problem, model, look, batch)
        if "normalised" not in extras:
            raise InputError(
                "diagnostics: 'normalisation' shows what amplitude normalisation makes of images, and this algorithm's "
                "model has none. Leave it out, or take an algorithm that adapts it so: adapt=amplitude_normalised(), "
                "as HarmoFL with a band does."
            )
        return extras["normalised"]

    return {
        "images": batches.inputs.astype(jnp.float16),
        "normalised": jax.lax.map(normalised, (models, batches)).astype(jnp.float16),
        "is_image": batches.mask > 0,
    }
