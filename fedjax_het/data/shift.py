"""Planted groups: examples are dealt to domains, and those of a domain are changed in the same way."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from fedjax_het.data.dataset import Dataset
from fedjax_het.errors import InputError
from fedjax_het.labels import are_times
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
        InputError: More than four groups; when applied, the inputs are not square images, or labels are masks.
    """
    if num_groups > 4:
        raise InputError(f"num_groups: there are four quarter turns, not {num_groups}. Give 1 to 4.")

    def turn(dataset: Dataset) -> Dataset:
        if dataset.inputs.ndim != 4 or dataset.inputs.shape[1] != dataset.inputs.shape[2] or dataset.is_segmentation:
            raise InputError(f"shift: {dataset.name} has no square images with labels to rotate. Use relabeled.")
        groups, inputs = _deal(dataset, num_groups, seed), np.array(dataset.inputs)
        for turns in range(1, num_groups):
            inputs[groups == turns] = np.rot90(inputs[groups == turns], turns, axes=(1, 2))
        names = tuple(f"rotated_{90 * turns}" for turns in range(num_groups))
        return replace(dataset, inputs=inputs, domains=groups, domain_names=names)

    return turn


@validate_arguments
def relabeled(num_groups: Count = 4, seed: Seed = 0) -> Shift:
    """The classes of group g are permuted at random; group 0 keeps them. The domains become "relabeled_0", ...

    Args:
        num_groups: The number of groups.
        seed: The seed of the group of each example and of the permutations.

    Raises:
        InputError: When applied, the examples do not have one class each.
    """

    def permute(dataset: Dataset) -> Dataset:
        if not dataset.has_label_per_example or are_times(dataset.labels):
            raise InputError(f"shift: {dataset.name} does not have one class per example. Use rotated.")
        groups, rng = _deal(dataset, num_groups, seed), np.random.default_rng([seed, 1])
        orders = [np.arange(dataset.num_classes)]
        orders += [rng.permutation(dataset.num_classes) for _ in range(1, num_groups)]
        labels = np.stack(orders)[groups, dataset.labels].astype(dataset.labels.dtype)
        names = tuple(f"relabeled_{number}" for number in range(num_groups))
        return replace(dataset, labels=labels, domains=groups, domain_names=names)

    return permute


def unchanged() -> Shift:
    """The data set as it is."""
    return lambda dataset: dataset


def _deal(dataset: Dataset, num_groups: int, seed: int) -> np.ndarray:
    """[examples] int32: groups of equal size, drawn at random."""
    order = np.random.default_rng([seed, 0]).permutation(len(dataset.inputs))
    return (order % num_groups).astype(np.int32)


SHIFTS: Mapping[str, Callable[..., Shift]] = MappingProxyType(
    {"none": unchanged, "rotated": rotated, "relabeled": relabeled}
)
"""Shifts by their config names."""
