"""Fourier spectra of images, and images whose low frequencies have amplitudes of others (HarmoFL, FedDG).

    A(x) = |DFT(x)|, P(x) = angle DFT(x), per channel, unnormalised

Images are [batch, height, width, channel]. The low frequencies of a band are the centred square up to
floor(min(height, width) band) along both axes, in the order of `numpy.fft.fftfreq`; "dc" is the mean alone.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fedjax_het._internal.target_platform import target_platform
from fedjax_het.types import Array
from fedjax_het.validation import Fraction

SquareBand = Literal["dc"] | Fraction


def spectrum(images: Array) -> tuple[Array, Array]:
    """(amplitude, phase in (-pi, pi]) of each image and channel, both [batch, height, width, channel]."""
    transform = fourier_transform(images)
    return jnp.abs(transform), jnp.angle(transform)


def fourier_transform(images: Array) -> Array:
    """The complex spectrum of each image and channel, [batch, height, width, channel]."""
    images = _as_float(images)
    if target_platform() != "tpu":
        return jnp.fft.fft2(images, axes=(1, 2))
    rows, columns = (_waves(size, images.dtype) for size in images.shape[1:3])
    return _transform(images, rows, columns)


def real_inverse(transform: Array) -> Array:
    """The real part of the inverse transform."""
    if target_platform() != "tpu":
        return jnp.fft.ifft2(transform, axes=(1, 2)).real
    rows, columns = (_waves(size, transform.real.dtype) for size in transform.shape[1:3])
    return _invert(transform, rows, columns)


def directions(transform: Array, tolerance: float | None = None) -> Array:
    """exp(iP) of a spectrum.

    Args:
        transform: The spectrum, complex.
        tolerance: Bins whose amplitude is at most this part of the channel's largest hold rounding noise, and get phase
            0; None is 1e-12 in float64 and 1e-6 in float32.
    """
    size = jnp.abs(transform)
    if tolerance is None:
        tolerance = 1e-12 if size.dtype == jnp.float64 else 1e-6
    is_noise = size <= tolerance * size.max((1, 2), keepdims=True)
    return jnp.where(is_noise, 1, transform / jnp.where(is_noise, 1, size))


def low_frequencies(size: tuple[int, int], band: SquareBand) -> tuple[np.ndarray, np.ndarray]:
    """The rows and the columns of a spectrum of this (height, width) that are in the band."""
    half = 0 if isinstance(band, str) else int(min(size) * band)
    rows, columns = (np.flatnonzero(np.abs(np.rint(np.fft.fftfreq(n) * n)) <= half) for n in size)
    return rows, columns


def low_amplitudes(images: Array, band: SquareBand) -> Array:
    """The amplitudes of the band's frequencies, [batch, row, column, channel]; no other is computed."""
    images = _as_float(images)
    return jnp.abs(_transform(images, *_low_waves(images, band)))


def interpolate_amplitudes(images: Array, amplitudes: Array, rates: Array, band: SquareBand) -> Array:
    """Draw the amplitudes of the band's frequencies towards others, and keep the phases (FedDG).

        Re IDFT(((1 - rate) A(x) + rate A') exp(i P(x)))   in the band, A(x) outside

    That is x + rate Re IDFT((A' - A(x)) exp(i P(x))) over the band alone: at rate 0, the image bit for bit. The result
    is not clipped.

    Args:
        images: [batch, height, width, channel].
        amplitudes: A', as `low_amplitudes` gives them.
        rates: [batch].
        band: The band.

    References:
        Liu et al., FedDG, CVPR 2021. arXiv:2103.06030, whose equation darkens the frequencies outside the band by a
        misprint that its authors correct in their repository's issues.
    """
    images = _as_float(images)
    waves = _low_waves(images, band)
    transform = _transform(images, *waves)
    change = (amplitudes - jnp.abs(transform)) * directions(transform)
    return images + rates[:, None, None, None] * _invert(change, *waves)


def _as_float(images: Array) -> Array:
    return images.astype(jnp.promote_types(images.dtype, jnp.float32))


def _low_waves(images: Array, band: SquareBand) -> tuple[np.ndarray, np.ndarray]:
    kept = low_frequencies((images.shape[1], images.shape[2]), band)
    rows, columns = (_waves(n, images.dtype)[:, own] for n, own in zip(images.shape[1:3], kept, strict=True))
    return rows, columns


def _transform(images: Array, rows: np.ndarray, columns: np.ndarray) -> Array:
    """The frequencies of these waves, [batch, row, column, channel]."""
    column_products = _multiply("jvw,nhwc->jnhvc", columns, images)
    products = _multiply("kgh,jnhvc->kjngvc", rows, column_products)
    return jax.lax.complex(products[0, 0] - products[1, 1], products[0, 1] + products[1, 0])


def _invert(transform: Array, rows: np.ndarray, columns: np.ndarray) -> Array:
    """The real part of what these frequencies [batch, row, column, channel] alone add to an image."""
    # Re IDFT(z) = Re DFT(conj z) / size.
    parts = jnp.stack([transform.real, -transform.imag])
    rows, columns = (waves / waves.shape[2] for waves in (rows, columns))
    products = _multiply("kvw,jnhvc->kjnhwc", columns, parts)
    by_column = jnp.stack([products[0, 0] - products[1, 1], -products[0, 1] - products[1, 0]])
    return _multiply("kgh,kngwc->nhwc", rows, by_column)


def _waves(size: int, dtype: DTypeLike) -> np.ndarray:
    """[2, frequency, position]: real and imaginary parts of exp(-2 pi i j k / size).

    A TPU compiles products with them in a fraction of the time that its Fourier transforms take.
    """
    number = np.arange(size)
    angle = 2 * np.pi / size * (np.outer(number, number) % size)
    return np.stack([np.cos(angle), -np.sin(angle)]).astype(dtype)


_multiply = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
