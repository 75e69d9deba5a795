"""Figs. 5, 8 and 9: what clients have, what they learn of it, and how far they agree."""

from ..figures import over_looks, shares_of_classes
from ..measures import class_loss, largest_share, last_look_of, looked, seen
from ..spec import Settings
from .spec import CE, METHODS, figure

_ALPHAS = {alpha: {"data.partition.alpha": alpha} for alpha in ("0.01", "0.1", "0.5", "1.0", "10.0")}
_TWO: dict[str, Settings] = {"FedAvg (ce)": CE, "FedMGC": METHODS["FedMGC"]}
_LOOKS = {"diagnose_every": "5"}
_MAJORITY, _MINORITY = slice(0, 2), slice(-2, None)
CLIENTS = {
    "fig5": figure(
        "FedMGC, Fig. 5: share of a client's examples by class, %",
        {"CIFAR-10": CE},
        shares_of_classes,
        "1.0",
        measures={"largest share, mean over clients": largest_share},
        columns=_ALPHAS,
        besides={"rounds": "1"},
        doubts=("Not told by the paper: the panels' alphas.",),
    ),
    "fig8": figure(
        "FedMGC, Fig. 8: cross-entropy of a client's trained model on its two largest and two smallest classes",
        _TWO,
        over_looks({"majority": class_loss(_MAJORITY), "minority": class_loss(_MINORITY)}, "cross-entropy"),
        "1.0",
        measures={
            "majority, last look": last_look_of(class_loss(_MAJORITY)),
            "minority, last look": last_look_of(class_loss(_MINORITY)),
        },
        besides={"diagnostics": "classes", **_LOOKS},
        doubts=(
            "The paper shows one client with 148 and 113 examples of its largest classes, 5 and 10 of its smallest; "
            "here it is the mean over the clients of a round.",
        ),
    ),
    "fig9": figure(
        "FedMGC, Fig. 9: gradient projection outliers p_i, mean over clients, against rounds",
        {name: METHODS[name] for name in ("FedMGC", "FedAvg", "FedProx")},
        over_looks({"": seen("conflict", "agreement")}, "conflict: agreement"),
        "1.0",
        measures={
            "p_i, last look": looked("conflict", "agreement", -1),
            "p_i over the mean length": looked("conflict", "relative_agreement", -1),
            "pairs in conflict": looked("conflict", "num_conflicts", -1),
        },
        besides={"diagnostics": "conflict", **_LOOKS},
    ),
}
