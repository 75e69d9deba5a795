"""Standardisation of labels that are numbers, when a federation is made."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedjax_het.data.assignment import Partition, ResamplingPartition
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.splitting import ClientSplit
from fedjax_het.data.units import Units, standardise_numbers
from fedjax_het.errors import InputError

Targets = Literal["none", "common", "client"]


def check_targets(form: Targets, dataset: Dataset, partition: Partition) -> None:
    """Raise InputError unless the labels can be standardised in this form."""
    if form == "none":
        return
    if dataset.kind.name != "numbers":
        raise InputError(f"standardise_targets: the labels of {dataset.name} are {dataset.kind.title}. Leave it out.")
    if dataset.units is not None:
        raise InputError(f"standardise_targets: the windows of {dataset.name} have units. Set scale of their source.")
    if form == "client" and isinstance(partition, ResamplingPartition):
        raise InputError("standardise_targets: clients of this partition share examples. Use 'common'.")


def standardise_labels(
    form: Targets, dataset: Dataset, splits: Sequence[ClientSplit], training: np.ndarray
) -> tuple[np.ndarray, Units | None]:
    """(The stored labels, the units of those that are standardised)."""
    if dataset.kind.name != "numbers":
        return dataset.labels, None
    if form == "none":
        return dataset.labels.astype(np.float32, copy=False), dataset.units
    is_train, group = np.zeros(len(dataset.labels), bool), np.zeros(len(dataset.labels), np.int32)
    is_train[training] = True
    if form == "client":
        group[:] = -1
        for number, split in enumerate(splits):
            is_train[split.train] = True
            group[np.concatenate(split)] = number
            if not len(split.train) and len(split.valid) + len(split.test):
                raise InputError(
                    f"standardise_targets: client {number} has no training examples to standardise by. Use 'common'."
                )
        if (group < 0).any():
            raise InputError(
                f"standardise_targets: {int((group < 0).sum())} examples belong to no client. Use 'common', or hold "
                "none out of all clients (test_fraction=0 or local_test; no unseen domains and no public examples)."
            )
    return standardise_numbers(dataset.labels, group, is_train, form)
