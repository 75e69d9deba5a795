"""What convolution and pooling have in common: how a window, its steps and its padding are written."""

from jax import lax

from fedjax_het.errors import InputError
from fedjax_het.models.lowerings import Pads

Pair = int | tuple[int, int]
Padding = str | int | Pads


def pair(value: Pair) -> tuple:
    """(height, width); one number is for both."""
    return (value, value) if isinstance(value, int) else tuple(value)


def pads_of(layer: str, size: Pair, window: Pair, strides: Pair, padding: Padding) -> Pads:
    """((top, bottom), (left, right)) for "SAME", "VALID", one count for every side, or such pairs themselves.

    Raises InputError where the window is larger than the padded image.
    """
    if isinstance(padding, str):
        pads = tuple(lax.padtype_to_pads(size, window, strides, padding))
    else:
        pads = tuple(pair(side) for side in pair(padding))
    for name, n, k, pad in zip(("height", "width"), size, window, pads, strict=True):
        if n + sum(pad) < k:
            raise InputError(
                f"{layer}: {name} {n} with padding {pad} is below the window's {k}. "
                "Use larger images, a smaller window, or padding='SAME'."
            )
    return pads
