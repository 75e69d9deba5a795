"""Diagnostics of images: amplitude spectra, mask contours and amplitude normalization."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.diagnostics._toolkit import Diagnostic, ImagePanel, Quantity, encoded, global_models, logits, over_rows
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Batch, Named, RoundSnapshot, Rows, Variables

MAX_CLIENTS, IMAGES = 4, 2


def image_shape(problem, snapshot: RoundSnapshot, name: str) -> tuple[int, int, int]:
    """(height, width, channel) of model inputs. Raises InputError if inputs are not images."""
    shape = jax.eval_shape(problem.prepare, snapshot.data.examples.inputs[:1]).shape[1:]
    if len(shape) != 3:
        raise InputError(f"diagnostics: '{name}' is for images [height, width, channel], not for inputs {shape}.")
    return shape


def first_images(problem, snapshot: RoundSnapshot, name: str) -> tuple[Variables, Batch]:
    """(the server's new model with the clients' personal leaves, their images), leaves [clients, ...].

    Batch leaves: [clients, IMAGES, ...], clients = min(MAX_CLIENTS, cohort); missing images of clients with fewer than
    IMAGES test images have mask 0.

    Raises:
        InputError: Inputs are not images, or no client has test examples.
    """
    image_shape(problem, snapshot, name)
    if snapshot.data.test is None:
        raise InputError(
            f"diagnostics: '{name}' shows clients' own test images, and no client has any. Give them some: "
            "data.client_test_fraction=0.2, or data.local_test=True."
        )
    models, rows = tree.take((global_models(snapshot), snapshot.data.test), slice(MAX_CLIENTS))
    batches = jax.vmap(lambda row: problem.batch(snapshot.data, row.index, row.count, 0, IMAGES))(rows)
    return models, batches


def amplitudes_of_round(problem, snapshot: RoundSnapshot) -> Named:
    """The mean log amplitude of each client's training images by frequency: {"log_amplitudes": [cohort, radii]}.

    The mean of log(1 + |F x|) over model inputs x [height, width, channel], channels, and frequencies whose distance
    from 0, in cycles per image, rounds to r = 0, 1, ...

    Raises:
        InputError: Inputs are not images.
    """
    height, width, _ = image_shape(problem, snapshot, "amplitudes")
    radius = jnp.round(jnp.hypot(jnp.fft.fftfreq(height)[:, None] * height, jnp.fft.fftfreq(width) * width))
    radius, num_radii = radius.astype(jnp.int32), min(height, width) // 2 + 1
    sizes = jnp.zeros(num_radii).at[radius].add(1, mode="drop")

    def client_spectrum(row: Rows) -> Array:
        def add(total: Array, batch: Batch, number: Array) -> Array:
            logs = jnp.log1p(jnp.abs(jnp.fft.fft2(batch.inputs.astype(jnp.float32), axes=(1, 2)))).mean(axis=-1)
            return total.at[radius].add(jnp.sum(logs * batch.mask[:, None, None], axis=0), mode="drop")

        return over_rows(problem, snapshot, row, add, jnp.zeros(num_radii)) / sizes / jnp.maximum(row.count, 1)

    return {"log_amplitudes": jax.lax.map(client_spectrum, snapshot.data.train)}


def contours_of_round(problem, snapshot: RoundSnapshot) -> Named:
    """Prepared test images, with the true and the predicted class of each pixel.

    {"images": float16 [clients, images, height, width, channel], "true", "predicted": [clients, images, height, width],
    "is_image": [clients, images]}. Predicted: the class with the largest logit of the server's new model with the
    client's personal leaves.
    Reads: data.test.

    Raises:
        InputError: Labels are not masks, or as in `first_images`.
    """
    if snapshot.data.examples.labels.ndim < 3:
        raise InputError(
            "diagnostics: 'contours' is for masks [height, width], and these examples have one label each. Leave it "
            "out, or give data with masks."
        )
    models, batches = first_images(problem, snapshot, "contours")

    def predicted(pair: tuple[Variables, Batch]) -> Array:
        model, batch = pair
        return jnp.argmax(logits(problem, model, snapshot, batch), axis=-1)

    return {
        "images": batches.inputs.astype(jnp.float16),
        "true": batches.labels,
        "predicted": jax.lax.map(predicted, (models, batches)).astype(batches.labels.dtype),
        "is_image": batches.mask > 0,
    }


def normalisation_of_round(problem, snapshot: RoundSnapshot) -> Named:
    """Prepared test images, and Psi(x) with the average amplitude after the round.

    {"images", "normalised": float16 [clients, images, height, width, channel], "is_image": [clients, images]}.
    Reads: data.test, and outputs.extras["normalised"] of a pass in evaluation mode.

    Raises:
        InputError: The model does not normalize images, or as in `first_images`.
    """
    models, batches = first_images(problem, snapshot, "normalisation")

    def normalised(pair: tuple[Variables, Batch]) -> Array:
        model, batch = pair
        _, extras = encoded(problem, model, snapshot, batch)
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


DIAGNOSTICS = {
    "amplitudes": Diagnostic(
        amplitudes_of_round,
        "Spectra of the clients' images",
        "Mean log amplitude by frequency, per client (HarmoFL).",
        {"log_amplitudes": Quantity("log amplitude", "radius", "cycles per image", unit="log amplitude")},
    ),
    "contours": Diagnostic(
        contours_of_round,
        "Outlines of masks",
        "Test images of the first clients of the cohort: true outlines yellow and solid, those that the server's model "
        "finds after the round, with a client's own leaves, blue and dashed (HarmoFL, Fig. 4).",
        panels=(ImagePanel("image", "images", outlines=("true", "predicted")),),
    ),
    "normalisation": Diagnostic(
        normalisation_of_round,
        "Images before and after amplitude normalisation",
        "Test images of the first clients of the cohort, as they are and with the federation's average amplitude in "
        "place of their own, as it is after the round; black and white are the same throughout (HarmoFL, Fig. 2).",
        panels=(ImagePanel("image", "images"), ImagePanel("normalised", "normalised")),
    ),
}
