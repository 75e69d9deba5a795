"""What the factories of models have in common: their checks, and the scaling of widths."""

from collections.abc import Sequence

from fedjax_het.errors import InputError


def check_num_classes(num_classes: int) -> None:
    if num_classes < 2:
        raise InputError(f"num_classes is {num_classes}: a classifier needs at least 2.")


def check_dropout(dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise InputError(f"dropout is {dropout}: give the part that is dropped, at least 0 and below 1.")


def check_images(network: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 4:
        raise InputError(f"{network} takes images [batch, height, width, channel], and was given shape {shape}.")


def widened(name: str, counts: Sequence[int], width: float) -> tuple[int, ...]:
    """Every count times the width, rounded, at least 1. Raises InputError where one of them is not positive."""
    if width <= 0:
        raise InputError(f"width is {width}: it multiplies every count of channels, so it must be positive.")
    for index, count in enumerate(counts):
        if count < 1:
            raise InputError(f"{name}[{index}] is {count}: a layer needs at least 1 unit; leave the layer out instead.")
    return tuple(max(1, round(width * count)) for count in counts)
