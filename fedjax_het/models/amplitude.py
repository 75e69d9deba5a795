"""Amplitude normalisation: images keep their phase spectrum and take on the federation's average amplitude spectrum.

    A(x) = |DFT(x)|, P(x) = angle DFT(x), per channel, unnormalised
    average <- (1 - v) average + v mean_m A(x_m)
    Psi(x) = Re IDFT(average exp(i P(x)))

Images are [batch, height, width, channel], averages [height, width, channel]. Output is not clipped to the range of
the input. A NaN in one image makes the average NaN, and with it the client's upload, which the server then drops.

Jiang, Wang and Dou, HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical
Images, AAAI 2022. arXiv:2112.10775. Authors' code: med-air/HarmoFL.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from fedjax_het.errors import InputError
from fedjax_het.models.spectrum import Band, check_band, check_init, normalise, update_average
from fedjax_het.types import Array, Context, Key, Model, Named, Variables
from fedjax_het.validation import Count, Fraction, NonNegative, validate_arguments


@validate_arguments
def amplitude_normalised(
    decay: Fraction = 0.1,
    band: Band = "full",
    init: str = "first",
    rounds: Count | None = 1,
    phase_tolerance: NonNegative | None = None,
) -> Callable[[Model], Model]:
    """Put amplitude normalisation in front of a model; it learns nothing and passes no gradient.

    Adds the collection "amplitude": average [height, width, channel], and count [], the batches in it (0: none yet).
    A training batch updates the average and is normalised by the new one while the round is below `rounds` (None:
    always; the paper uses 1 in practice) or the average is empty; later, and in evaluation, the average stays. An
    empty average leaves evaluated images alone. What the network is given is in extras["normalised"].

    decay, band, init, phase_tolerance: see `update_average` and `normalise`. As the authors' code acts: decay=0,
    band="dc". It differs in that an all-black first batch counts as a batch here, and that the average changes once a
    training batch there twice, and in evaluation too.
    Raises InputError for values that cannot work, and for images of another size than the average.
    """
    _check_settings(decay, band, init)
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
                amplitude = _updated(amplitude, inputs, context, rounds, decay, init)
            images = normalised(inputs, amplitude["average"])
            images = jax.lax.stop_gradient(jnp.where(amplitude["count"] > 0, images, inputs))
            (features, extras), state = model.encode(rest, images, context)
            return (features, extras | {"normalised": images}), state | {"amplitude": amplitude}

        return Model(start, encode, model.classify, model.layers)

    return adapt


def _updated(amplitude: Named, images: Array, context: Context, rounds: int | None, decay: float, init: str) -> Named:
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


def _check_settings(decay: float | Array, band: Band, init: str) -> None:
    check_init(init)
    check_band(band)
    if not isinstance(decay, jax.core.Tracer) and decay == 0 and init != "first":
        raise InputError("decay: must be above 0 unless init='first', not 0.")
