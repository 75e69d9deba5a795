"""Amplitudes of the low frequencies of a client's images (FedDG)."""

import jax.numpy as jnp

from fedjax_het.algorithm import Measure, Problem
from fedjax_het.spectra import low_amplitudes
from fedjax_het.types import ClientView, Named
from fedjax_het.validation import Count, Fraction, validate_arguments


@validate_arguments
def low_frequency_amplitudes(band: Fraction = 0.01, num_images: Count = 8) -> Measure:
    """{"amplitudes" [num_images, row, column, channel], "count" []}: those of so many training images, one by one.

    From round to round a client's next images have their turn, in the order of its table, until all have had it. With
    fewer images than `num_images` it has them all every time; behind `count`, entries mean nothing. Images are those
    that the model is given, without augmentation.

    Args:
        band: The frequencies, see `spectra.low_frequencies`; their share of the larger half of the spectrum.
        num_images: How many of a client's images.
    """

    def measure(problem: Problem, view: ClientView) -> Named:
        rows = view.data.train
        count = jnp.minimum(rows.count, num_images)
        turn = view.received.round * count + jnp.arange(num_images)
        index = rows.index[turn % jnp.maximum(rows.count, 1)]
        batch = problem.batch(view.data, index, count, 0, num_images)
        return {"amplitudes": low_amplitudes(batch.inputs, band), "count": count.astype(float)}

    return measure
