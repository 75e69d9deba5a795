"""The methods of HarmoFL's tables and figures, and the caveats that several of them share."""

from ..spec import Settings

METHODS = {
    "FedAvg": {"algorithm.name": "fedavg"},
    "FedProx": {"algorithm.name": "fedprox"},
    "FedNova": {"algorithm.name": "fednova"},
    "FedAdam": {"algorithm.name": "fedadam"},
    "FedBN": {"algorithm.name": "fedbn", "model.norm": "batch"},
    "MOON": {"algorithm.name": "moon"},
    "HarmoFL": {"algorithm.name": "harmofl"},
}
MAIN_METHODS = {name: METHODS[name] for name in ("FedAvg", "FedBN", "HarmoFL")}
PARTS = {
    "FedAvg": METHODS["FedAvg"],
    "amplitude only": {"algorithm.name": "harmofl", "algorithm.alpha": "0.0"},
    "HarmoFL": METHODS["HarmoFL"],
}
AVERAGE = "Avg."
SELECTED = "of the round that is best on validation"
NETWORKS = (
    "Not in the paper: the networks of the compared methods; the released code holds HarmoFL's alone, whose norms "
    "learn and keep nothing. They have it too, but for FedBN, which would be FedAvg: its norms are those of its own "
    "authors' code, with scale, shift and running statistics."
)
BASELINES = (
    NETWORKS,
    "Not in the paper: the baselines' own settings. FedProx's mu is .01, MOON's 1 at a temperature of .5 and with "
    "one earlier model, FedAdam's server rate .01 and tau .001 with decays .9 and .99, FedNova without a proximal "
    "term; HarmoFL weighs clients alike, as in its code, the others by their examples.",
)
RELEASED_CODE = (
    "The printed values are most likely of the released code, which replaces the mean of an image alone and keeps the "
    "first batch's for good (band 'dc', decay 0); here all amplitudes are replaced and averaged, as in the paper's "
    "equations."
)
LETTERS = "Not in the paper: which letter is which site; here they are in the order of the {}."


def diagnose_at_end(rounds: int, diagnostic: str) -> Settings:
    """Make the settings that measure a diagnostic in the first and in the last of so many rounds."""
    return {"diagnostics": diagnostic, "diagnose_every": str(rounds - 1)}
