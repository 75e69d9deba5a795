"""Amplitudes of the low frequencies of a client's images (FedDG)."""

import jax.numpy as jnp

from fedjax_het.algorithm import Measure, Problem
from fedjax_het.spectra import SquareBand, low_amplitudes
from fedjax_het.types import ClientView, Named
from fedjax_het.validation import Count, validate_arguments


@validate_arguments
def low_frequency_amplitudes(band: SquareBand = 0.01, num_images: Count = 8) -> Measure:
    """{"amplitudes" [num_images, row, column, channel], "count" []}: amplitudes of `num_images` training images.

    The images are spread evenly over the client's table, the same in every round; a client with fewer images sends all
    of them. Entries beyond `count` are undefined. Images are the model's inputs, without augmentation.

    Args:
        band: Frequency band relative to the larger half of the spectrum, see `spectra.low_frequencies`.
        num_images: Number of images per client.
    """

    def measure(problem: Problem, view: ClientView) -> Named:
        rows = view.data.train
        count = jnp.minimum(rows.count, num_images)
        spread = jnp.arange(num_images) * rows.count // jnp.maximum(count, 1)
        index = rows.index[jnp.minimum(spread, jnp.maximum(rows.count - 1, 0))]
        batch = problem.batch(view.data, index, count, 0, num_images)
        return {"amplitudes": low_amplitudes(batch.inputs, band), "count": count.astype(float)}

    return measure
