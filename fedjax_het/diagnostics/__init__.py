"""Diagnostics: values and images that explain a round of a run.

A diagnostic is a record: a pure function (problem, RoundSnapshot) -> named arrays, compiled with the round, and its
display in reports. Add a record to DIAGNOSTICS to make it available in configs and reports.
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
