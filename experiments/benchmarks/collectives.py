"""Collectives of a compiled program: their names and sizes."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import jax

from fedjax_het import tree
from fedjax_het.types import State

_KINDS = "all-gather|all-reduce|all-to-all|collective-permute|ragged-all-to-all|reduce-scatter"
_COLLECTIVE = re.compile(rf" = (.*?) ({_KINDS})(-start)?\(([^)]*)")
_ARRAY = re.compile(r"(pred|[a-z]+\d+)\w*\[([\d,]*)\]")


class GatheredStatesError(Exception):
    """A collective sends a tensor of all clients' states."""


class Collective(NamedTuple):
    """A collective operation; one in a loop is listed once."""

    kind: str  # as HLO names it, such as "all-gather"
    num_bytes: float  # of the result on one device


def list_collectives(text: str) -> list[Collective]:
    """List the collectives in the text of a compiled program, `Compiled.as_text()`."""
    found = []
    for types, kind, start, operands in _COLLECTIVE.findall(text):
        sizes = [_count_bytes(*array) for array in _ARRAY.findall(types)]
        holds_operands = start and kind != "all-reduce"  # the start of other collectives lists the operands first
        found.append(Collective(kind, sum(sizes[operands.count("%") if holds_operands else 0 :])))
    return found


def check_collectives(collectives: Sequence[Collective], state: State, cohort_size: int) -> None:
    """Check that no collective is as large as the largest tensor of all clients' states.

    States whose largest tensor is smaller than the models of a cohort are not checked.

    Args:
        collectives: The program's collectives.
        state: The state of a run, or its shapes.
        cohort_size: The number of clients per round.

    Raises:
        GatheredStatesError: A collective is at least as large.
    """
    largest = max(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.clients))
    if largest <= cohort_size * tree.num_bytes(state.server.shared):
        return
    for kind, num_bytes in collectives:
        if num_bytes >= largest:
            raise GatheredStatesError(
                f"{kind} of {num_bytes / 1e6:.3g} MB, the size of a tensor of all clients' states"
            )


def _count_bytes(dtype: str, shape: str) -> float:
    bits = 8 if dtype == "pred" else int(re.sub(r"\D", "", dtype))
    return bits / 8 * math.prod(int(size) for size in shape.split(",") if size)
