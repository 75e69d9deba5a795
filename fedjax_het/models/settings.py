"""What the factories of models have in common: their checks, and the scaling of widths."""

from collections.abc import Sequence

from fedjax_het.errors import InputError
from fedjax_het.validation import LARGEST_COUNT


def check_num_classes(num_classes: int) -> None:
    if num_classes < 2:
        raise InputError(f"num_classes is {num_classes}: a classifier needs at least 2.")


def check_images(network: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 4:
        raise InputError(f"{network} takes images [batch, height, width, channel], and was given shape {shape}.")


def widened(name: str, counts: Sequence[int], width: float) -> tuple[int, ...]:
    """Every count times the width, rounded, at least 1. Raises InputError where no array can be so wide."""
    if counts and max(counts) * width > LARGEST_COUNT:
        raise InputError(
            f"width: {width:g} times {name} of {max(counts)} is more than an array can have, {LARGEST_COUNT}. Give "
            "less."
        )
    return tuple(max(1, round(width * count)) for count in counts)
