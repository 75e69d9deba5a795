"""The normalisation that gives images the federation's average amplitude (HarmoFL).

    A(x) = |DFT(x)|, P(x) = angle DFT(x), per channel, unnormalised
    average <- (1 - v) average + v mean_m A(x_m)
    Psi(x) = Re IDFT(average exp(i P(x)))

Images are [batch, height, width, channel], averages [height, width, channel]. The output is not clipped to the range
of the input. A NaN in one image makes the average NaN, and with it the client's upload, which the server then drops.

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
from fedjax_het.spectra import directions, fourier_transform, low_frequencies, real_inverse
from fedjax_het.types import Array, Context, Key, Model, Named, Variables
from fedjax_het.validation import Count, Fraction, NonNegative, may_be_nonzero, validate_arguments

Band = Literal["full", "dc"] | Fraction
FirstAverage = Literal["first", "zero", "debias"]


@validate_arguments
def normalise(images: Array, amplitude: Array, *, band: Band = "full", phase_tolerance: float | None = None) -> Array:
    """Replace the images' amplitude spectrum by `amplitude` [height, width, channel] and keep their phases.

    Args:
        band: "full" replaces every frequency, as the paper's equations say. "dc" replaces the mean alone, as the
            authors' code does: it shifts each image and channel by a constant. A number L replaces the centred square
            of frequencies up to floor(min(height, width) L). Data centred around zero need "full": elsewhere the mean's
            sign is that of noise.
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
    """(average, count) after one more batch; `count` [] is the number of batches seen, padding is left out.

    A batch of nothing but padding changes neither.

    Args:
        decay: The paper's v, 0.1; the authors' code writes 0.1 and acts as 0, so that the first batch stays.
        init: What the first batch does. "first" stores its mean as it is, "zero" is the paper's letter (v times the
            mean: dark images at first), "debias" divides what "zero" gives by 1 - (1 - v)^count.
    """
    is_example = mask != 0
    num_examples = jnp.sum(is_example)
    total = jnp.sum(jnp.abs(fourier_transform(images)), 0, where=is_example[:, None, None, None])
    batch_mean, is_empty = total / jnp.maximum(num_examples, 1), num_examples == 0
    rate = {
        "first": lambda: jnp.where(count == 0, 1.0, decay),
        "zero": lambda: decay,
        # The corrected average obeys average_k = average_{k-1} + rate_k (mean_k - average_{k-1}) itself.
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
    """Put amplitude normalisation in front of a model; it learns nothing and passes no gradient.

    Adds the collection "amplitude": average [height, width, channel], and count [], the batches in it (0: none yet). A
    training batch updates the average and is normalised by the new one while the round is below `rounds` (None: always;
    the paper uses 1 in practice) or the average is empty; later, and in evaluation, the average stays. An empty average
    leaves evaluated images alone. What the network is given is in extras["normalised"].
    As the authors' code acts: decay=0, band="dc". It differs in that an all-black first batch counts as a batch here,
    and that the average changes once per training batch, where it changes twice there, and in evaluation too.

    Args:
        decay: The paper's v, see `update_average`.
        band: The frequencies that are replaced, see `normalise`.
        init: What the first batch does, see `update_average`.
        rounds: For so many rounds the average moves; None is every round.
        phase_tolerance: See `normalise`.

    Raises:
        InputError: Values that cannot work; images of another size than the average.
    """
    if init != "first" and not may_be_nonzero(decay):
        raise InputError("decay: must be above 0 unless init='first', not 0.")
    normalised = partial(normalise, band=band, phase_tolerance=phase_tolerance)

    def adapt(model: Model) -> Model:
        def start(key: Key, inputs: Array) -> Variables:
            _check_images(inputs)
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

        return Model(start, encode, model.classify, model.layers)

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
    _check_images(inputs)
    rest = dict(variables)
    amplitude = rest.pop("amplitude")
    stored = amplitude["average"].shape
    if stored != inputs.shape[1:]:
        raise InputError(
            f"amplitude: images are {inputs.shape[1:]} (height, width, channel) and the stored average is {stored}. "
            "Bring all images to one size, or initialise the model with images of this size."
        )
    return amplitude, rest


def _check_images(inputs: Array) -> None:
    if inputs.ndim != 4:
        raise InputError(
            f"amplitude: inputs have shape {inputs.shape}; amplitude normalisation needs images "
            "[batch, height, width, channel]."
        )
