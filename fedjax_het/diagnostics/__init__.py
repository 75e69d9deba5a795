"""Diagnostics: numbers and pictures that explain one round of a run.

A diagnostic is a pure function (problem, Look) -> named arrays, compiled with the round. Add one to NUMBERS, or to
PICTURES where it shows images, and a config can name it.
"""

from fedjax_het.diagnostics import _images, _losses, _updates
from fedjax_het.diagnostics._losses import decomposition
from fedjax_het.diagnostics._updates import conflict, drift, implied_weights, num_conflicts, spectrum

NUMBERS = {
    "decomposition": _losses.decomposition_of_round,
    "conflict": _updates.conflict_of_round,
    "drift": _updates.drift_of_round,
    "spectrum": _updates.spectrum_of_round,
    "weights": _updates.weights_of_round,
    "norms": _updates.norms_of_round,
    "classes": _losses.classes_of_round,
    "amplitudes": _images.amplitudes_of_round,
    "landscape": _losses.landscape_of_round,
}
PICTURES = {
    "contours": _images.contours_of_round,
    "normalisation": _images.normalisation_of_round,
}
DIAGNOSTICS = NUMBERS | PICTURES

__all__ = [
    "DIAGNOSTICS",
    "NUMBERS",
    "PICTURES",
    "conflict",
    "decomposition",
    "drift",
    "implied_weights",
    "num_conflicts",
    "spectrum",
]
