"""What diagnostics mean, for a reader of their figures."""

from typing import NamedTuple


class Matrix(NamedTuple):
    """How a matrix is drawn. across: "clients", "classes", or what its columns count."""

    title: str
    across: str
    x_label: str
    y_label: str
    scale: str = "level"
    unit: str = "loss"


DIAGNOSTICS = {
    "decomposition": (
        "Where the loss comes from",
        "local + shift + aggregation = total: what local training leaves, what other clients' data add to a client's "
        "model, and what aggregation adds to (or takes from) the mean of all models (FedLD, Eq. 2).",
    ),
    "conflict": (
        "How far updates contradict each other",
        "Cosines of the clients' updates; pairs with a negative one are in conflict. Agreement p: how much the others "
        "go the same way, relative: by the mean length of updates; dominance: agreement by the client's loss (FedMGC, "
        "Defs. 2 to 4).",
    ),
    "drift": (
        "How far clients wander",
        "Γ: mean squared distance from the received model over a client's local steps (HarmoFL, Eq. 9).",
    ),
    "spectrum": (
        "In how many directions clients pull",
        "Eigenvalues of the updates, falling; how many axes hold 80, 90 and 99 % of their sum; their entropy as a "
        "number of directions (FedLD, Eq. 5).",
    ),
    "weights": (
        "What each client counts for",
        "The weights with which updates come nearest to what the server made of them, whatever the aggregator; "
        "residual: what they leave, 0 where the server took a mean (FedGA, FedRD).",
    ),
    "norms": ("Lengths of gradients and updates", "Of each client, over the model's parameters."),
    "classes": (
        "Which classes a client has learnt",
        "Each client's trained model on its own training examples of a class; empty where it has none (FedMGC, Fig. "
        "8).",
    ),
    "amplitudes": ("Spectra of the clients' images", "Mean log amplitude by frequency, a client (HarmoFL)."),
    "landscape": (
        "The loss around the server's model",
        "Along two random directions, filter-normalised; 0, 0 is the model. The flatter, the better it bears what "
        "other data do to it (HarmoFL, Fig. 1).",
    ),
    "contours": (
        "Outlines of masks",
        "Test images of the first clients of the cohort: true outlines yellow and solid, those that the server's model "
        "finds after the round, with a client's own leaves, blue and dashed (HarmoFL, Fig. 4).",
    ),
    "normalisation": (
        "What amplitude normalisation makes of images",
        "Test images of the first clients of the cohort, as they are and with the federation's average amplitude in "
        "place of their own, as it is after the round; black and white are the same throughout (HarmoFL, Fig. 2).",
    ),
}

_PAIR = ("clients", "client", "client")
MATRICES = {
    "conflict/cosines": Matrix("cosines of updates", *_PAIR, "signed", "cosine"),
    "conflict/projections": Matrix("projections p_ij", *_PAIR, "signed", "p"),
    "decomposition/losses": Matrix("every client's model on every client's data", "clients", "model of", "data of"),
    "classes/losses": Matrix("loss a class", "classes", "class", "client"),
    "classes/counts": Matrix("training examples a class", "classes", "class", "client", "amount", "examples"),
    "amplitudes/log_amplitudes": Matrix("log amplitude", "radius", "cycles an image", "client", unit="log amplitude"),
}
SERIES = {"spectrum/eigenvalues": ("eigenvalues", "axis")}
"""Vectors over something other than clients: (title, what they count)."""

SHARES = {"spectrum/num_axes": ("axes for 80 %", "axes for 90 %", "axes for 99 %")}
"""Vectors that are several scalars."""


def title(diagnostic: str) -> str:
    return DIAGNOSTICS.get(diagnostic, (diagnostic.capitalize(), ""))[0]


def caption(diagnostic: str) -> str:
    return DIAGNOSTICS.get(diagnostic, ("", ""))[1]


def matrix(diagnostic: str, quantity: str, is_square: bool) -> Matrix:
    """One that is not known here is drawn by its shape."""
    other = Matrix(quantity, *(_PAIR if is_square else ("index", "index", "client")), unit=quantity)
    return MATRICES.get(f"{diagnostic}/{quantity}", other)


def spoken(quantity: str) -> str:
    return {
        "num_conflicts": "pairs in conflict",
        "num_conflicts_after": "pairs in conflict after editing",
        "gamma": "Γ",
    }.get(quantity, quantity.replace("_", " "))
