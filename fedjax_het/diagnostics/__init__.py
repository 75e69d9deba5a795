"""Numbers and pictures that explain a run: each looks at one round, which is trained for its eyes and then forgotten.

A diagnostic is a pure function (problem, Look) -> named arrays, compiled with the round. Add one to NUMBERS, or to
PICTURES where it shows images, and a config can name it.
"""

from fedjax_het.diagnostics import (
    amplitudes,
    classes,
    conflict,
    contours,
    decomposition,
    drift,
    landscape,
    normalisation,
    norms,
    spectrum,
    weights,
)

NUMBERS = {
    "decomposition": decomposition.of_round,
    "conflict": conflict.of_round,
    "drift": drift.of_round,
    "spectrum": spectrum.of_round,
    "weights": weights.of_round,
    "norms": norms.of_round,
    "classes": classes.of_round,
    "amplitudes": amplitudes.of_round,
    "landscape": landscape.of_round,
}
PICTURES = {
    "contours": contours.of_round,
    "normalisation": normalisation.of_round,
}
DIAGNOSTICS = NUMBERS | PICTURES

__all__ = ["DIAGNOSTICS", "NUMBERS", "PICTURES"]
