"""Clients' examples from a CSV file with the columns client, phase, example and perhaps concept."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_het.data.assignment import LabeledExamples, Partition
from fedjax_het.data.phases import ABSENT
from fedjax_het.data.sources._image_listing import parse_count, read_csv_columns, read_table
from fedjax_het.data.timeline import Concepts, Drift, Entries, Timeline, count_concepts
from fedjax_het.errors import InputError
from fedjax_het.validation import CountOrZero, validate_arguments

_COLUMNS = ["client", "phase", "example"]


class Listing(NamedTuple):
    """The lines of a file; every array is [lines]."""

    client: np.ndarray
    phase: np.ndarray
    example: np.ndarray
    concept: np.ndarray  # 0 without a column


def read_listing(path: str) -> Listing:
    """Read a file with the columns client, phase and example, numbers from 0, and perhaps concept.

    Raises:
        InputError: The file cannot be read, a column is missing, or a cell is no whole number.
    """
    where = Path(path)
    has_concept = "concept" in read_table(where)[0]
    names = _COLUMNS + ["concept"] * has_concept
    lines = read_csv_columns(where, names)
    cells = [
        [parse_count(where, line, name, text) for name, text in zip(names, texts, strict=True)] for line, texts in lines
    ]
    columns = np.array(cells, np.int64).T
    client, phase, example, concept = [*columns, np.zeros(len(cells), np.int64)][:4]
    return Listing(client, phase, example, concept)


@validate_arguments
def listed_clients(path: str) -> Partition:
    """Each client has the examples that a CSV file lists for it; the drift `listed` reads the same file.

    The file has a header with the columns `client`, `phase` and `example`, numbers from 0; `example` is the position in
    the data set. Every example is listed, in any number of phases of one client.

    Args:
        path: The file.

    Raises:
        InputError: When the partition is applied, the file cannot be read, an example is not listed, or it is listed
            for two clients, or a client does not exist.
    """

    def partition(examples: LabeledExamples, num_clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        del rng
        listing, positions = read_listing(path), examples.positions
        if positions is None:
            raise InputError("partition: 'listed' needs the positions of examples in the data set.")
        if (largest := listing.client.max()) >= num_clients:
            raise InputError(f"path: {path} lists client {largest}, and there are {num_clients}, numbered from 0.")
        pairs = np.unique(np.stack([listing.example, listing.client]), axis=1)
        if (is_repeated := np.diff(pairs[0]) == 0).any():
            example = pairs[0, 1:][is_repeated][0]
            raise InputError(f"path: {path} lists example {example} for two clients. List it for one.")
        is_listed = np.isin(positions, pairs[0])
        if not is_listed.all():
            example = positions[~is_listed][0]
            raise InputError(f"path: {path} does not list example {example}. List every example of the data set.")
        owner = pairs[1][np.searchsorted(pairs[0], positions)]
        return [np.flatnonzero(owner == client) for client in range(num_clients)]

    return partition


@validate_arguments
def listed(path: str, starts: Sequence[CountOrZero], concepts: Concepts = None) -> Drift:
    """The examples of each client in each phase are listed in a CSV file.

    The file has a header with the columns `client`, `phase` and `example`, numbers from 0, and optionally `concept`;
    `example` is the position in the data set. In a phase, a client has the examples that are listed for it, and no
    others. Which examples it holds out is the same in all phases. The partition `listed` reads the same file.

    Args:
        path: The file.
        starts: The first round of each phase, in increasing order; the first is 0.
        concepts: The concepts that the column `concept` refers to; None: there is no such column.

    Raises:
        InputError: The file cannot be read, lists an unknown client, phase or concept, or an example that is not the
            client's.
    """

    def drift(entries: Entries, rng: np.random.Generator) -> Timeline:
        del rng
        listing = read_listing(path)
        limits = {
            "client": entries.num_clients,
            "phase": len(starts),
            "concept": 1 if concepts is None else count_concepts(concepts, entries),
        }
        for name, limit in limits.items():
            if (largest := getattr(listing, name).max()) >= limit:
                raise InputError(f"path: {path} lists {name} {largest}, and there are {limit}, numbered from 0.")
        owned = zip(entries.clients.tolist(), entries.positions.tolist(), strict=True)
        place = {key: number for number, key in enumerate(owned)}
        phases = np.full((len(starts), len(entries.clients)), ABSENT, np.int32)
        for client, phase, example, concept in zip(*(column.tolist() for column in listing), strict=True):
            if (client, example) not in place:
                raise InputError(
                    f"path: {path} lists example {example}, which client {client} does not have. Use the partition "
                    "'listed' with the same file, which gives clients the examples listed for them."
                )
            phases[phase, place[client, example]] = concept
        return Timeline(tuple(starts), lambda phase: phases[phase], concepts)

    return drift
