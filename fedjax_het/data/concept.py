"""Concepts of examples by their config names: rotated, relabeled, swapped, inverted, noisy and mislabeled ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import numpy as np

from fedjax_het.concepts import Concepts
from fedjax_het.errors import InputError
from fedjax_het.types import Examples, HostArray
from fedjax_het.validation import CountOrZero, Fraction, NonNegative, Range, Seed, validate_arguments

_QUARTER = 90
_CHUNK = 4096  # examples changed at a time
NumConcepts = Annotated[int, Range(2, 2**15, is_whole=True)]


@dataclass(frozen=True)
class Concept:
    """A change of examples; the default is none. Changes are made in the order of the arguments.

    Args:
        degrees: The angle of a counter-clockwise rotation: of square images, a multiple of 90; of vectors, any angle,
            and their first two features are rotated.
        is_inverted: Whether x becomes 255 - x, for uint8 images.
        noise: The standard deviation of Gaussian noise; 1 is the range of uint8 images. An example always has the same.
        classes: The new class of each class; None: the same.
        flips: The probability that an example has another class, uniform over the others, and always the same.
    """

    degrees: float = 0.0
    is_inverted: bool = False
    noise: float = 0.0
    classes: tuple[int, ...] | None = None
    flips: float = 0.0


ConceptFamily = Callable[[int], tuple[Concept, ...]]
"""Number of classes -> the concepts; the first is usually that of the data set."""


def none() -> None:
    """Examples do not change."""


@validate_arguments
def rotated(num_concepts: NumConcepts = 2) -> ConceptFamily:
    """Concept k turns images counter-clockwise by k quarter turns.

    Args:
        num_concepts: The number of concepts, 2 to 4.

    Raises:
        InputError: There are more than four.
    """
    if num_concepts > 4:
        raise InputError(f"num_concepts: there are four quarter turns, not {num_concepts}. Give 2 to 4.")
    return lambda num_classes: tuple(Concept(degrees=_QUARTER * number) for number in range(num_concepts))


@validate_arguments
def relabeled(num_concepts: NumConcepts = 2, seed: Seed = 0) -> ConceptFamily:
    """Concept k permutes the classes at random; concept 0 keeps them.

    Args:
        num_concepts: The number of concepts.
        seed: The seed of the permutations.
    """

    def permute(num_classes: int) -> tuple[Concept, ...]:
        rng = np.random.default_rng([seed, 1])
        orders = [rng.permutation(num_classes) for _ in range(1, num_concepts)]
        return Concept(), *(Concept(classes=tuple(order.tolist())) for order in orders)

    return permute


@validate_arguments
def swapped(pairs: Sequence[tuple[CountOrZero, CountOrZero]] = ((1, 2), (3, 4), (5, 6))) -> ConceptFamily:
    """Concept k exchanges the two classes of pair k; concept 0 keeps them. FedDrift's concepts of MNIST.

    Args:
        pairs: The pairs of classes, for concepts 1, 2, ...

    Raises:
        InputError: There is no pair; when used, the data set does not have a class.
    """
    if not pairs:
        raise InputError("pairs: no pair of classes is exchanged. Give at least one, say ((1, 2),).")
    return lambda num_classes: (Concept(), *(Concept(classes=swap_classes([pair], num_classes)) for pair in pairs))


@validate_arguments
def inverted() -> ConceptFamily:
    """Concept 1 exchanges black and white, x -> 255 - x."""
    return lambda num_classes: (Concept(), Concept(is_inverted=True))


@validate_arguments
def noisy(deviation: NonNegative = 0.3, num_concepts: NumConcepts = 2) -> ConceptFamily:
    """Concept k adds Gaussian noise with k times a standard deviation to the inputs.

    Args:
        deviation: The standard deviation of concept 1; 1 is the range of uint8 images.
        num_concepts: The number of concepts.
    """
    return lambda num_classes: tuple(Concept(noise=deviation * number) for number in range(num_concepts))


@validate_arguments
def mislabeled(flips: Fraction = 0.3) -> ConceptFamily:
    """Concept 1 gives examples another class with a probability, uniform over the others.

    Args:
        flips: The probability.
    """
    return lambda num_classes: (Concept(), Concept(flips=flips))


def swap_classes(pairs: Sequence[tuple[int, int]], num_classes: int) -> tuple[int, ...]:
    """The new class of each class if the classes of each pair are exchanged.

    Raises:
        InputError: A class does not exist.
    """
    order = list(range(num_classes))
    for first, second in pairs:
        if (wrong := max(first, second)) >= num_classes:
            raise InputError(f"pairs: there is no class {wrong}; the last is {num_classes - 1}.")
        order[first], order[second] = order[second], order[first]
    return tuple(order)


def stack_concepts(
    concepts: Sequence[Concept], inputs: HostArray, labels: HostArray, num_classes: int, seed: int
) -> Concepts | None:
    """Stack concepts as arrays for one set of examples.

    Args:
        concepts: The concepts.
        inputs: The stored inputs [n, ...].
        labels: Their labels.
        num_classes: The number of classes.
        seed: The seed of noise and flips.

    Returns:
        The `Concepts`; None if nothing changes.

    Raises:
        InputError: A change does not apply to these inputs or labels.
    """
    degrees = np.array([concept.degrees for concept in concepts])
    noise, flips = (np.array([getattr(c, name) for c in concepts], np.float32) for name in ("noise", "flips"))
    is_inverted = np.array([concept.is_inverted for concept in concepts])
    is_square = inputs.ndim == 4 and inputs.shape[1] == inputs.shape[2]
    is_vector = inputs.ndim == 2 and inputs.shape[1] >= 2 and inputs.dtype == np.float32
    turns = rotation = classes = None
    if degrees.any():
        if is_square and not np.any(degrees % _QUARTER):
            turns = (degrees // _QUARTER % 4).astype(np.int32)
        elif is_vector:
            cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
            rotation = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
        else:
            raise InputError(
                f"concepts: inputs of shape {inputs.shape[1:]} cannot be rotated by {degrees.max():g} degrees. Rotate "
                "square images by multiples of 90 degrees, or choose another change."
            )
    if is_inverted.any() and inputs.dtype != np.uint8:
        raise InputError("concepts: only images of 0 to 255 can be inverted. Choose another change.")
    if noise.any() and not (inputs.dtype == np.uint8 or inputs.dtype == np.float32):
        raise InputError("concepts: tokens are names, which cannot have noise. Change the classes instead.")
    if flips.any() or any(concept.classes for concept in concepts):
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise InputError("concepts: the examples do not have one class each. Change the inputs instead.")
        order = tuple(range(num_classes))
        for concept in concepts:
            own = concept.classes or order
            if len(own) != num_classes or not set(own) <= set(order):
                raise InputError(f"concepts: expected the new class of each of {num_classes} classes, not {concept}.")
        classes = np.array([concept.classes or order for concept in concepts], np.int32)
    is_random = noise.any() or flips.any()
    made = Concepts(
        classes,
        turns,
        rotation,
        is_inverted if is_inverted.any() else None,
        noise if noise.any() else None,
        flips if flips.any() else None,
        np.asarray(seed, np.int32) if is_random else None,
    )
    return made if any(field is not None for field in made) else None


def change_examples(examples: Examples, concepts: Concepts, concept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and labels of all examples, each under its concept [n], as new arrays."""
    num, changed = len(examples.labels), examples._replace(concepts=concepts)
    inputs, labels = np.array(examples.inputs), np.array(examples.labels)
    for first in range(0, num, _CHUNK):
        part = slice(first, first + _CHUNK)
        positions = np.arange(num)[part]
        inputs[part], labels[part] = map(np.asarray, changed.read(concept[part] * num + positions))
    return inputs, labels


CONCEPTS: Mapping[str, Callable[..., ConceptFamily | None]] = MappingProxyType(
    {
        "none": none,
        "rotated": rotated,
        "relabeled": relabeled,
        "swapped": swapped,
        "inverted": inverted,
        "noisy": noisy,
        "mislabeled": mislabeled,
    }
)
"""Families of concepts by their config names."""
