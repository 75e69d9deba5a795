"""Public examples by their config names: none, held out from the training examples, or another data set."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from fedjax_het.data.dataset import Dataset
from fedjax_het.data.sources import SOURCES
from fedjax_het.validation import OpenFraction, validate_arguments


def no_examples() -> float:
    """There are no public examples."""
    return 0.0


@validate_arguments
def held_out(fraction: OpenFraction = 0.1) -> float:
    """A part of the training examples, which no client then has.

    Args:
        fraction: The fraction of the training examples.
    """
    return fraction


PUBLIC: Mapping[str, Callable[..., float | Dataset]] = MappingProxyType(
    {"none": no_examples, "held_out": held_out, **SOURCES}
)
"""What `federate` takes as `public`, by config names; the name of a source reads another data set."""
