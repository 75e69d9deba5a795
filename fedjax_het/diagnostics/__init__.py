"""Diagnostics: numbers and pictures that explain one round of a run.

A diagnostic is one record: a pure function (problem, RoundSnapshot) -> named arrays, compiled with the round, and how
reports show them. Add one to DIAGNOSTICS, and a config can name it and the report shows it.
"""

from fedjax_het.diagnostics import _images, _losses, _updates
from fedjax_het.diagnostics._losses import decomposition
from fedjax_het.diagnostics._toolkit import Diagnostic, ImagePanel, Quantity
from fedjax_het.diagnostics._updates import conflict, drift, implied_weights, num_conflicts, spectrum

DIAGNOSTICS: dict[str, Diagnostic] = _losses.DIAGNOSTICS | _updates.DIAGNOSTICS | _images.DIAGNOSTICS

__all__ = [
    "DIAGNOSTICS",
    "Diagnostic",
    "ImagePanel",
    "Quantity",
    "conflict",
    "decomposition",
    "drift",
    "implied_weights",
    "num_conflicts",
    "spectrum",
]
