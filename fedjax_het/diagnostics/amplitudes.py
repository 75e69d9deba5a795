"""How much of which frequency a client's images have (HarmoFL's amplitude spectra)."""

import jax
import jax.numpy as jnp

from fedjax_het.diagnostics.pictured import image_shape
from fedjax_het.diagnostics.seen import over_rows
from fedjax_het.types import Array, Batch, Named, RoundSnapshot, Rows


def of_round(problem, look: RoundSnapshot) -> Named:
    """{"log_amplitudes": [cohort, radii]}: mean of log(1 + |F x|) over a client's training images, channels, and
    frequencies whose distance from 0, in cycles an image, rounds to r = 0, 1, ...

    x: as the model takes them, [height, width, channel].   Raises InputError for inputs that are no images.
    """
    height, width, _ = image_shape(problem, look, "amplitudes")
    radius = jnp.round(jnp.hypot(jnp.fft.fftfreq(height)[:, None] * height, jnp.fft.fftfreq(width) * width))
    radius, num_radii = radius.astype(jnp.int32), min(height, width) // 2 + 1
    sizes = jnp.zeros(num_radii).at[radius].add(1, mode="drop")

    def one(row: Rows) -> Array:
        def add(total: Array, batch: Batch) -> Array:
            logs = jnp.log1p(jnp.abs(jnp.fft.fft2(batch.inputs.astype(jnp.float32), axes=(1, 2)))).mean(axis=-1)
            return total.at[radius].add(jnp.sum(logs * batch.mask[:, None, None], axis=0), mode="drop")

        return over_rows(problem, look, row, add, jnp.zeros(num_radii)) / sizes / jnp.maximum(row.count, 1)

    return {"log_amplitudes": jax.lax.map(one, look.data.train)}
