"""Planted groups: examples are dealt to domains, and those of a domain have the same concept in all rounds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from fedjax_het.data import concept
from fedjax_het.data.concept import ConceptFamily
from fedjax_het.data.dataset import Dataset
from fedjax_het.types import Examples
from fedjax_het.validation import Count, Seed, validate_arguments

Shift = Callable[[Dataset], Dataset]


@validate_arguments
def rotated(num_groups: Count = 4, seed: Seed = 0) -> Shift:
    """Images of group g are turned counter-clockwise by g quarter turns; the domains become "rotated_0", "rotated_90".

    With `by_domain` or `domain_dirichlet`, each client has the examples of one group.

    Args:
        num_groups: The number of groups, 1 to 4. IFCA's experiments have 2 and 4.
        seed: The seed of the group of each example.

    Raises:
        InputError: More than four groups; when applied, the inputs are not square images.
    """
    names = [f"rotated_{90 * turns}" for turns in range(num_groups)]
    return _plant(concept.rotated(num_groups) if num_groups > 1 else None, names, seed)


@validate_arguments
def relabeled(num_groups: Count = 4, seed: Seed = 0) -> Shift:
    """The classes of group g are permuted at random; group 0 keeps them. The domains become "relabeled_0", ...

    Args:
        num_groups: The number of groups.
        seed: The seed of the group of each example and of the permutations.

    Raises:
        InputError: When applied, the examples do not have one class each.
    """
    names = [f"relabeled_{number}" for number in range(num_groups)]
    return _plant(concept.relabeled(num_groups, seed) if num_groups > 1 else None, names, seed)


def unchanged() -> Shift:
    """The data set as it is."""
    return lambda dataset: dataset


def _plant(family: ConceptFamily | None, names: Sequence[str], seed: int) -> Shift:
    """Deal examples to groups of equal size at random; group g has concept g. None: the groups do not differ."""

    def plant(dataset: Dataset) -> Dataset:
        order = np.random.default_rng([seed, 0]).permutation(len(dataset.inputs))
        groups = (order % len(names)).astype(np.int32)
        inputs, labels, num_classes = dataset.inputs, dataset.labels, dataset.num_classes
        kinds = concept.stack_concepts(family(num_classes), inputs, labels, num_classes, seed) if family else None
        if kinds is not None:
            inputs, labels = concept.change_examples(Examples(inputs, labels), kinds, groups)
        return replace(dataset, inputs=inputs, labels=labels, domains=groups, domain_names=tuple(names))

    return plant


SHIFTS: Mapping[str, Callable[..., Shift]] = MappingProxyType(
    {"none": unchanged, "rotated": rotated, "relabeled": relabeled}
)
"""Shifts by their config names."""
