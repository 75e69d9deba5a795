"""Data poisoning attacks: label flipping, and a backdoor with a measured success rate."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Unpack

import numpy as np

from fedjax_het.attackers import Attackers, check_attackers, choose_attackers
from fedjax_het.data.federation import Federation
from fedjax_het.errors import InputError
from fedjax_het.labels import find_kind
from fedjax_het.types import Rows
from fedjax_het.validation import Count, CountOrZero, PositiveFraction, validate_arguments

Poisoning = Callable[[Federation], Federation]
BACKDOOR = "backdoor"
"""The key of the triggered examples in `Federation.unseen`; the accuracy there is the success rate."""


@validate_arguments
def flip_labels(**attackers: Unpack[Attackers]) -> Poisoning:
    """Attackers train on y -> classes - 1 - y, also of ranks; events and censoring of survival times are swapped, and
    so are known tags that are true and false.

    Test examples keep their labels.

    Args:
        attackers: Which clients attack, see `fedjax_het.attackers.Attackers`.

    Raises:
        InputError: Neither a fraction nor ids are given, or both are; or labels are numbers.
    """
    check_attackers(attackers)

    def poison(federation: Federation) -> Federation:
        positions, labels = _training_positions(federation, attackers), np.array(federation.examples.labels)
        kind, own = find_kind(labels), labels[positions]
        if kind.name == "numbers":
            raise InputError("poison: numbers cannot be flipped. Use a stage of the uplink: attack_sign_flip.")
        largest = {"times": 0, "tags": 1}.get(kind.name, federation.num_classes - 1)
        labels[positions] = np.where(own < 0, own, largest - own) if kind.is_partial else largest - own
        return federation.with_examples(federation.examples._replace(labels=labels))

    return poison


@validate_arguments
def backdoor(
    target: CountOrZero = 0,
    size: Count = 3,
    share: PositiveFraction = 0.5,
    **attackers: Unpack[Attackers],
) -> Poisoning:
    """Attackers train a backdoor: images with a bright square in the lower right corner get the target label.

    `unseen/backdoor/accuracy` is the success rate: the fraction of common test images of other classes that are
    classified as the target once they contain the square.

    Args:
        target: The index of the target class.
        size: The side of the square in pixels.
        share: The fraction of each attacker's training examples that get the square and the label.
        attackers: See `flip_labels`.

    Raises:
        InputError: See `flip_labels`; or the federation has no images with a single label, no common test set, or no
            such class.
    """
    check_attackers(attackers)

    def poison(federation: Federation) -> Federation:
        inputs, labels = np.array(federation.examples.inputs), np.array(federation.examples.labels)
        if inputs.ndim != 4 or find_kind(labels).name != "classes":
            raise InputError("poison: a backdoor needs images with one label each. Choose flip_labels.")
        if federation.test is None:
            raise InputError("poison: a backdoor is measured on the common test set. Set test_fraction above 0.")
        if target >= federation.num_classes:
            raise InputError(f"target: there is no class {target}; the last is {federation.num_classes - 1}.")
        if size > min(inputs.shape[1:3]):
            raise InputError(f"size: a square of {size} pixels is larger than images of {inputs.shape[1:3]}. Lower it.")
        brightest = np.iinfo(inputs.dtype).max if np.issubdtype(inputs.dtype, np.integer) else inputs.max()
        test = np.asarray(federation.test.index)[: int(federation.test.count)]
        shown = test[labels[test] != target]
        positions = _training_positions(federation, attackers, share)
        inputs = np.concatenate([inputs, inputs[shown]])
        labels = np.concatenate([labels, np.full(len(shown), target, labels.dtype)])
        added = np.arange(len(inputs) - len(shown), len(inputs), dtype=np.int32)
        labels[positions] = target
        changed = np.concatenate([positions, added])
        inputs[changed, -size:, -size:] = brightest
        unseen = federation.unseen | {BACKDOOR: Rows(added, np.asarray(len(added), np.int32))}
        examples = federation.examples._replace(inputs=inputs, labels=labels)
        return replace(federation.with_examples(examples), unseen=unseen)

    return poison


def _training_positions(federation: Federation, attackers: Attackers, share: float = 1.0) -> np.ndarray:
    """The positions of the first training examples of each attacker, up to a fraction."""
    if federation.phases is not None:
        raise InputError("poison: attackers change examples, which the drift of config.data changes too. Choose one.")
    rows = federation.data.train
    ids = choose_attackers(federation.num_clients, attackers)
    if len(ids) and not np.any(np.asarray(rows.count)[ids]):
        raise InputError("clients: no attacker has a training example. Name other clients.")
    parts = [np.asarray(rows.index[i])[: int(np.ceil(share * int(rows.count[i])))] for i in ids]
    return np.concatenate([*parts, np.zeros(0, np.int32)]).astype(np.int64)


POISONINGS: Mapping[str, Callable[..., Poisoning]] = MappingProxyType(
    {"flip_labels": flip_labels, "backdoor": backdoor}
)
