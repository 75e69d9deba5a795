"""Figs. 6, 7 and 10 to 12: test accuracy."""

from ..figures import curves, sweep
from .spec import ABLATION, METHODS, figure

_EVERYONE = {"data.num_clients": "10", "cohort_size": "0"}
_BOTH = ("CIFAR-10", "FMNIST")
_RATIOS = {ratio: {"algorithm.fraction": ratio} for ratio in ("0.1", "0.3", "0.5", "0.7", "0.9")}
ACCURACY = {
    "fig6": figure("FedMGC, Fig. 6: ablation, test accuracy against rounds", ABLATION, curves(), "1.0"),
    "fig7": figure(
        "FedMGC, Fig. 7: test accuracy by the share of dominant gradients",
        {"FedMGC": METHODS["FedMGC"]},
        sweep("lambda", "linear"),
        "0.5",
        columns=_RATIOS,
    ),
    "fig10": figure(
        "FedMGC, Fig. 10: everyone takes part, test accuracy against rounds",
        {"SCAFFOLD": {"algorithm.name": "scaffold"}, **METHODS},
        curves(),
        "0.5",
        besides=_EVERYONE,
    ),
    "fig11": figure("FedMGC, Fig. 11: test accuracy, alpha .5", METHODS, curves(), "0.5", sets=_BOTH),
    "fig12": figure("FedMGC, Fig. 12: test accuracy, alpha 1", METHODS, curves(), "1.0", sets=_BOTH),
}
