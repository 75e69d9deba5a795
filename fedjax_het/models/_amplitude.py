"""Normalization of images to the federation's average amplitude (HarmoFL).

    A(x) = |DFT(x)|, P(x) = angle DFT(x), per channel, unnormalized
    average <- (1 - v) average + v mean_m A(x_m)
    Psi(x) = Re IDFT(average exp(i P(x)))

Images are [batch, height, width, channel], averages [height, width, channel]. The output is not clipped to the range
of the input. A NaN in an image makes the average NaN, and thus the client's upload, which the server then drops.

Jiang, Wang and Dou, HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical
Images, AAAI 2022. arXiv:2112.10775. Authors' code: med-air/HarmoFL.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import InputError
from fedjax_het.models._model import check_images
from fedjax_het.spectra import directions, fourier_transform, low_frequencies, real_inverse
from fedjax_het.types import Array, Context, Key, Model, Named, Variables
from fedjax_het.validation import Count, Fraction, NonNegative, may_be_nonzero, validate_arguments

Band = Literal["full", "dc"] | Fraction
FirstAverage = Literal["first", "zero", "debias"]


@validate_arguments
def normalise(images: Array, amplitude: Array, *, band: Band = "full", phase_tolerance: float | None = None) -> Array:
    """Replace the amplitude spectrum of images by `amplitude` [height, width, channel], keeping their phases.

    Args:
        band: "full" replaces all frequencies, as in the paper's equations. "dc" replaces only the mean, as in the
            authors' code, which shifts each image and channel by a constant. A number L replaces the centered square
            of frequencies up to floor(min(height, width) L). Zero-centered data require "full": otherwise the sign of
            the mean is noise.
        phase_tolerance: See `spectra.directions`.
    """
    transform = fourier_transform(images)
    is_replaced = _in_band((images.shape[1], images.shape[2]), band)[..., None]
    replaced = amplitude.astype(transform.real.dtype) * directions(transform, phase_tolerance)
    return real_inverse(jnp.where(is_replaced, replaced, transform))


@validate_arguments
def update_average(
    average: Array, count: Array, images: Array, mask: Array, decay: Fraction = 0.1, init: FirstAverage = "first"
) -> tuple[Array, Array]:
    """Return (average, count) after one more batch; `count` [] is the number of batches seen. Padding is ignored.

    A batch of only padding changes neither.

    Args:
        decay: The paper's v (default 0.1); the authors' code sets 0.1 but behaves like 0, which keeps the first batch.
        init: The treatment of the first batch: "first" stores its mean, "zero" follows the paper literally (v times
            the mean: dark images initially), "debias" divides the result of "zero" by 1 - (1 - v)^count.
    """
    is_example = mask != 0
    num_examples = jnp.sum(is_example)
    total = jnp.sum(jnp.abs(fourier_transform(images)), 0, where=is_example[:, None, None, None])
    batch_mean, is_empty = total / jnp.maximum(num_examples, 1), num_examples == 0
    rate = {
        "first": lambda: jnp.where(count == 0, 1.0, decay),
        "zero": lambda: decay,
        # The debiased average satisfies average_k = average_{k-1} + rate_k (mean_k - average_{k-1}).
        "debias": lambda: decay / (1 - (1 - decay) ** (count.astype(average.dtype) + 1)),
    }[init]()
    new = (1 - rate) * average + rate * batch_mean
    return jnp.where(is_empty, average, new.astype(average.dtype)), jnp.where(is_empty, count, count + 1)


def _in_band(size: tuple[int, int], band: Band) -> np.ndarray:
    """[height, width]: whether a bin is replaced."""
    if band == "full":
        return np.ones(size, bool)
    rows, columns = low_frequencies(size, band)
    is_inside = np.zeros(size, bool)
    is_inside[np.ix_(rows, columns)] = True
    return is_inside


@validate_arguments
def amplitude_normalised(
    decay: Fraction = 0.1,
    band: Band = "full",
    init: FirstAverage = "first",
    rounds: Count | None = 1,
    phase_tolerance: NonNegative | None = None,
) -> Callable[[Model], Model]:
    """Prepend amplitude normalization to a model; it has no trainable parameters and passes no gradient.

    Adds the collection "amplitude": average [height, width, channel], and count [], its number of batches. A training
    batch updates the average and is normalized by the new average while the round is below `rounds` or the average is
    empty; afterwards, and in evaluation, the average is fixed. With an empty average, evaluated images are unchanged.
    extras["normalised"] contains the normalized images.
    To match the behavior of the authors' code, use decay=0, band="dc". Remaining differences: here an all-black first
    batch counts as a batch, and the average changes once per training batch; there twice, and in evaluation too.

    Args:
        decay: The paper's v, see `update_average`.
        band: The frequencies to replace, see `normalise`.
        init: The treatment of the first batch, see `update_average`.
        rounds: Number of rounds that update the average (default 1, as the paper in practice). None: every round.
        phase_tolerance: See `normalise`.

    Raises:
        InputError: Values are invalid, or images differ in size from the average.
    """
    if init != "first" and not may_be_nonzero(decay):
        raise InputError("decay: must be above 0 unless init='first', not 0.")
    normalised = partial(normalise, band=band, phase_tolerance=phase_tolerance)

    def adapt(model: Model) -> Model:
        def start(key: Key, inputs: Array) -> Variables:
            check_images("amplitude normalization", inputs.shape)
            dtype = jnp.promote_types(inputs.dtype, jnp.float32)
            empty = {"average": jnp.zeros(inputs.shape[1:], dtype), "count": jnp.zeros((), jnp.float32)}
            return model.init(key, inputs) | {"amplitude": empty}

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            amplitude, rest = _split(variables, inputs)
            if context.is_training:
                amplitude = _update(amplitude, inputs, context, rounds, decay, init)
            images = normalised(inputs, amplitude["average"])
            images = jax.lax.stop_gradient(jnp.where(amplitude["count"] > 0, images, inputs))
            (features, extras), state = model.encode(rest, images, context)
            return (features, extras | {"normalised": images}), state | {"amplitude": amplitude}

        return model._replace(init=start, encode=encode)

    return adapt


def _update(
    amplitude: Named, images: Array, context: Context, rounds: int | None, decay: float, init: FirstAverage
) -> Named:
    average, count = update_average(amplitude["average"], amplitude["count"], images, context.mask, decay, init)
    new = {"average": average, "count": count}
    if rounds is None:
        return new
    is_open = (context.round < rounds) | (amplitude["count"] == 0)
    return jax.tree.map(partial(jnp.where, is_open), new, amplitude)


def _split(variables: Variables, inputs: Array) -> tuple[Named, Variables]:
    check_images("amplitude normalization", inputs.shape)
    rest = dict(variables)
    amplitude = rest.pop("amplitude")
    stored = amplitude["average"].shape
    if stored != inputs.shape[1:]:
        raise InputError(
            f"amplitude: images are {inputs.shape[1:]} (height, width, channel) and the stored average is {stored}. "
            "Bring all images to one size, or initialise the model with images of this size."
        )
    return amplitude, rest
