"""Timelines: the phases that a drift gives to the data of all clients, and their index tables."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from fedjax_het.data.concept import Concept, ConceptFamily, stack_concepts
from fedjax_het.data.dataset import Dataset
from fedjax_het.data.federation import Federation
from fedjax_het.data.phases import ABSENT, Phases
from fedjax_het.data.splitting import ClientSplit, pad_lists
from fedjax_het.errors import InputError
from fedjax_het.types import Rows
from fedjax_het.validation import LARGEST_COUNT

Concepts = ConceptFamily | Sequence[Concept] | None


class Entries(NamedTuple):
    """The properties of clients' examples that a drift may depend on; every array is [entries].

    Args:
        clients: The client that has the example.
        positions: The position of the example in the data set.
        labels: Its class; 0 if examples have masks or label sequences.
        domains: Its domain.
        uniform: A random number in [0, 1), a function of the seed, the client and the example.
        is_train: Whether its client trains on it, rather than holding it out.
        read_inputs: Positions in the data set -> the stored inputs.
        num_clients: The number of clients.
        num_classes: The number of classes.
        num_domains: The number of domains.
    """

    clients: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    domains: np.ndarray
    uniform: np.ndarray
    is_train: np.ndarray
    read_inputs: Callable[[np.ndarray], np.ndarray]
    num_clients: int
    num_classes: int
    num_domains: int


class Timeline(NamedTuple):
    """The phases of all clients' data.

    Args:
        starts: The first round of each phase, in increasing order; starts[0] is 0.
        concept: The number of a phase -> the concept of each entry, ABSENT if the client does not have the example.
        concepts: What each concept does, or a function of the number of classes; None if examples never change.
    """

    starts: Sequence[int]
    concept: Callable[[int], Int[np.ndarray, "entries"]]
    concepts: Concepts = None


Drift = Callable[[Entries, np.random.Generator], Timeline]


def count_concepts(concepts: Concepts, entries: Entries) -> int:
    if concepts is None:
        number, what = entries.num_domains, "domains of the data set"
    else:
        number, what = len(concepts(entries.num_classes) if callable(concepts) else concepts), "concepts"
    if number < 2:
        raise InputError(
            f"drift: needs at least two {what}, and there is {number}. Set config.data.concepts, pass concepts=..., or "
            "take data of several domains."
        )
    return number


def select_domain(concept: np.ndarray, concepts: Concepts, entries: Entries) -> np.ndarray:
    """Without concepts, the domains take their place: a client has the examples of one domain at a time."""
    return concept if concepts is not None else np.where(entries.domains == concept, 0, ABSENT)


def apply_drift(
    federation: Federation,
    drift: Drift,
    dataset: Dataset,
    splits: Sequence[ClientSplit],
    streams: Sequence[np.random.Generator],
    rng: np.random.Generator,
    seed: int,
) -> Federation:
    """Give the clients of a federation other data in each phase of a drift.

    Args:
        federation: The federation, without newcomers or a common test set.
        drift: The drift.
        dataset: The data set of its examples.
        splits: The positions of each client.
        streams: The generator of each client.
        rng: The generator of the drift.
        seed: The seed of noise and flips of concepts.

    Raises:
        InputError: The drift does not fit the data set or the clients, a phase has no training examples, or nothing
            ever changes.
    """
    positions = [np.concatenate(split) for split in splits]
    everything, clients = np.concatenate(positions), list(zip(positions, splits, strict=True))
    entries = Entries(
        clients=np.repeat(np.arange(len(splits)), list(map(len, positions))),
        positions=everything,
        labels=dataset.classes[everything] if dataset.has_label_per_example else np.zeros(len(everything), np.int32),
        domains=dataset.domains[everything],
        uniform=np.concatenate([rng.random(len(own)) for rng, own in zip(streams, positions, strict=True)]),
        is_train=np.concatenate([np.arange(len(own)) < len(train) for own, (train, *_) in clients]),
        read_inputs=lambda chosen: np.asarray(dataset.inputs[chosen]),
        num_clients=len(splits),
        num_classes=dataset.num_classes,
        num_domains=len(dataset.domain_names),
    )
    timeline = drift(entries, rng)
    starts = np.asarray(timeline.starts, np.int64)
    if len(starts) < 2 or starts[0] != 0 or np.any(np.diff(starts) <= 0):
        raise InputError(
            f"drift: phases start in rounds {starts.tolist()}. Give two or more, in increasing order; the first is 0."
        )
    numbers = [np.asarray(timeline.concept(phase)) for phase in range(len(starts))]
    rows, tables = tabulate_versions(splits, numbers, len(dataset.labels))
    examples, concepts = federation.examples, timeline.concepts
    if concepts is not None:
        concepts = concepts(dataset.num_classes) if callable(concepts) else concepts
        stacked = stack_concepts(concepts, examples.inputs, examples.labels, dataset.num_classes, seed)
        federation = federation.with_examples(examples._replace(concepts=stacked))
    has_class = federation.count_classes(tables[0]) > 0
    by_phase = np.stack([has_class[own].any(axis=0) for own in rows])
    if not by_phase.any(axis=1).all():
        phase = int(np.argmin(by_phase.any(axis=1)))
        raise InputError(f"drift: no client has training examples in phase {phase}, from round {starts[phase]} on.")
    phases = Phases(starts, rows, tables, by_phase)
    return replace(federation, phases=phases).in_round(0)


def tabulate_versions(
    splits: Sequence[ClientSplit], concepts: Sequence[np.ndarray], num_examples: int
) -> tuple[Int[np.ndarray, "phases clients"], tuple[Rows, Rows, Rows]]:
    """Write the data of all clients in all phases as tables with one row per version.

    Args:
        splits: The positions of each client.
        concepts: For each phase, the concept of every entry, ABSENT if the client does not have it: entries are the
            training, validation and test examples of the first client, then those of the second, ...
        num_examples: The number of stored examples.

    Returns:
        (The row of each client in each phase, the tables of training, validation and test examples.)

    Raises:
        InputError: There are too many examples and concepts, or nothing ever changes.
    """
    largest = max(int(concept.max(initial=0)) for concept in concepts)
    if (largest + 1) * num_examples > LARGEST_COUNT:
        raise InputError(
            f"drift: {largest + 1} concepts of {num_examples} examples exceed the limit of {LARGEST_COUNT}. Use fewer "
            "concepts or examples."
        )
    positions = [np.concatenate(split) for split in splits]
    bounds = np.cumsum([0, *map(len, positions)])
    numbers: dict[tuple[int, bytes], int] = {}
    versions: list[list[np.ndarray]] = []
    rows = np.zeros((len(concepts), len(splits)), np.int32)
    for phase, all_concepts in enumerate(concepts):
        for client, split in enumerate(splits):
            own = np.asarray(all_concepts[bounds[client] : bounds[client + 1]], np.int32)
            key = client, own.tobytes()
            if key not in numbers:
                numbers[key] = len(versions)
                entries = np.where(own == ABSENT, ABSENT, positions[client] + own.astype(np.int64) * num_examples)
                parts = np.split(entries, np.cumsum([len(part) for part in split])[:-1])
                versions.append([part[part != ABSENT] for part in parts])
            rows[phase, client] = numbers[key]
    if (rows == rows[0]).all():
        raise InputError("drift: has no effect, because no client's data change. Set another start, or leave it out.")
    train, valid, test = (pad_lists([version[part] for version in versions]) for part in range(3))
    return rows, (train, valid, test)
