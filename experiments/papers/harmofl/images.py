"""Fig. 1, the clients' loss around the server's model, and Fig. 4, segmented images."""

from ..diagnostics import landscapes, segmentations
from ..measures import offset, on_own, rise
from ..spec import Experiment, Scale, smoke
from .methods import (
    A_CNN,
    A_UNET,
    CAMELYON,
    CAMELYON_DATA,
    DIGITS,
    FOR_CAMELYON,
    NETWORKS,
    PARTS,
    STROKES,
    THREE,
    X_RAY_DATA,
    X_RAYS,
    seen_at_the_end,
)
from .segmentation import NUCLEI_SCALES, NUCLEI_UNTOLD, PROSTATE_SCALES, PROSTATE_UNTOLD

_DOMAINS = {"data.domains": "True", "data.partition.name": "by_domain", "data.num_clients": "4"}
_CLIENTS = {"clients": {}}


FIGURE_1 = Experiment(
    title="HarmoFL, Fig. 1: the clients' loss around the server's model, cross-entropy",
    rows=PARTS,
    measures={
        "rise of the loss at .4": rise(0.4),
        "distance of a client's lowest loss": offset,
        "accuracy on clients' own test examples, %, after the last round": on_own(),
    },
    scales={
        "smoke": smoke(_CLIENTS, {**DIGITS, **_DOMAINS, **seen_at_the_end(3, "landscape")}, A_CNN),
        "cpu": Scale(
            "chest_xray/fedavg.py",
            {**X_RAYS, **seen_at_the_end(32, "landscape"), "num_seeds": "1"},
            _CLIENTS,
            FOR_CAMELYON,
            X_RAY_DATA,
        ),
        "paper": Scale(
            "camelyon17/fedavg.py", {**CAMELYON, **seen_at_the_end(100, "landscape")}, _CLIENTS, "", CAMELYON_DATA
        ),
    },
    draw=landscapes,
    doubts=("The figure shows two clients; which data they have, and how its plane was chosen, is not said.",),
)
_SMOKE = smoke({}, {**STROKES, **seen_at_the_end(3, "contours")}, A_UNET)
_NOT_SAID = (
    "Which methods and images the figure shows cannot be read from the text.",
    "Images and Dice are of the models after the last round, not of those that validation selects.",
    NETWORKS,
)
FIGURE_4 = {
    f"fig4-{what}": Experiment(
        title=f"HarmoFL, Fig. 4: {what}, test images with true and predicted outlines",
        rows=THREE,
        measures={
            "Dice of clients' own test images, %": on_own("dice"),
            "the same without the background": on_own("dice_foreground"),
        },
        scales={name: scale._replace(columns={"images": {}}) for name, scale in {**scales, "smoke": _SMOKE}.items()},
        draw=segmentations,
        doubts=(*_NOT_SAID, untold),
    )
    for what, scales, untold in (
        ("nuclei", NUCLEI_SCALES, NUCLEI_UNTOLD),
        ("prostate", PROSTATE_SCALES, PROSTATE_UNTOLD),
    )
}
