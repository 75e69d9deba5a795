"""Looks of diagnostics.jsonl: which there are, and who was there."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_het.diagnostics import DIAGNOSTICS, Diagnostic

from .rows import Row

DiagnosticLine = Mapping[str, Any]
_MOST = 6  # looks that a reader chooses from


def before(rounds: int) -> str:
    """A look is at the round to come."""
    return f"round {rounds + 1}"


def thin_out(rounds: Sequence[int]) -> list[int]:
    """The first, the last, and some between."""
    at = np.linspace(0, len(rounds) - 1, min(_MOST, len(rounds))).round().astype(int)
    return [rounds[i] for i in dict.fromkeys(at.tolist())]


def at(row: Row, round: int, name: str, quantity: str) -> list[DiagnosticLine]:
    """A row's looks at one round that have this quantity, a seed each."""
    return [look for look in row.first.snapshots if look["round"] == round and quantity in look.get(name, {})]


def present(look: DiagnosticLine) -> np.ndarray:
    """Positions in the cohort of the clients that were there."""
    return np.flatnonzero(look["cohort"]["is_present"])


def names(row: Row, look: DiagnosticLine) -> list[str]:
    """Of the clients that were there."""
    everyone = cohort(row, look)
    return [everyone[i] for i in present(look)]


def cohort(row: Row, look: DiagnosticLine) -> list[str]:
    """Names of all clients of the cohort, in its order."""
    known = [client["client"] for client in row.first.partition["clients"]] if row.first.partition else []
    return [known[i] if i < len(known) else f"client {i}" for i in look["cohort"]["ids"]]


def record(name: str) -> Diagnostic:
    """What is known of a diagnostic; of one that this version does not have, its name."""
    return DIAGNOSTICS.get(name) or Diagnostic(lambda problem, look: {}, name.capitalize(), "")
