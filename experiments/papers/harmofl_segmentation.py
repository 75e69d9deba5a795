"""HarmoFL's methods, Table 1 and Fig. 4: Dice on nuclei and on prostate MRI, and segmented images."""

from fedjax_het.cli.runs.records import flatten

from ..figures import plot_segmentations
from ..measures import read_client_score, read_mean_client_score
from ..spec import Experiment, Scale, Settings, make_smoke_scale, read_printed

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
    """Make the settings that measure a diagnostic in the first and in the last round."""
    return {"diagnostics": diagnostic, "diagnose_every": str(rounds - 1)}


SITES = {letter: {} for letter in "ABCDEF"}
NUCLEI = flatten(
    {
        "data": {"name": "arrays", "path": "{nuclei}", "num_clients": "3", "size": "128"},
        "model.width": "0.25",
        "algorithm": {"learning_rate": "0.02", "batch_size": "8"},
        "rounds": "40",
        "evaluate_every": "2",
    }
)
SITES_REDUCTION = (
    "three sites for six (116 tiles of 128 x 128 for 256 x 256), a quarter of the U-Net's channels, 40 rounds for 500 "
    "at a rate of .02 for .0001, every second one validated, batches of 8, one seed for three"
)
NUCLEI_DATA = {"nuclei": "the nuclei's .npz file"}
SITES_DATA = {"nuclei": "the folder with a folder for each site"}
PROSTATE_DATA = {"prostate": "the folder with a folder for each site"}
STROKES = flatten(
    {
        "layout": "chunked(1)",  # compiles fastest
        "data": {
            "masks": "True",
            "domains": "True",
            "num_clients": "4",
            "valid_fraction": "0.16",
            "client_test_fraction": "0.2",
            "test_fraction": "0.0",
        },
        "data.partition.name": "by_domain",
        "model": {"name": "unet", "width": "0.125", "levels": "1"},
        "task_loss": "dice",
    }
)
UNET_NETWORK = "their strokes as masks, a U-Net of one level with an eighth of the channels"

_PUBLISHED = {"num_seeds": "3", "evaluate_every": "1", **diagnose_at_end(500, "contours")}
NUCLEI_UNSTATED = (
    "Not in the paper: images, splits and batches of the nuclei. Here images are 256 x 256, a site's are cut into "
    "64, 16 and 20 % for training, validation and test, as the released code cuts the prostate data, and batches are "
    "of 16, as there."
)
PROSTATE_UNSTATED = (
    "Not in the paper: the loss and the batches of the prostate data. The mean of cross-entropy and soft Dice and "
    "batches of 16 are those of the released code; its Adam has betas of .9 and .999, here .9 and .99, as in the paper."
)
DEVIATIONS = "The deviations beside averages are over sites, the others over seeds."
_SMOKE = make_smoke_scale({"plain": {}}, STROKES, UNET_NETWORK)
NUCLEI_SCALES = {
    "smoke": _SMOKE,
    "cpu": Scale(
        "nuclei",
        {**NUCLEI, **diagnose_at_end(40, "contours")},
        {"monuseg2018": {}, "gbm40": {}, "monusac2020": {}},
        SITES_REDUCTION,
        NUCLEI_DATA,
    ),
    "paper": Scale("nuclei", {"data.path": "{nuclei}", **_PUBLISHED}, SITES, "", SITES_DATA),
}
PROSTATE_SCALES = {
    "smoke": _SMOKE,
    "paper": Scale("prostate", {"data.path": "{prostate}", **_PUBLISHED}, SITES, "", PROSTATE_DATA),
}
"""Their runs are Fig. 4's, too, except at the smallest scale."""

NUCLEI_TABLE = Experiment(
    title=f"HarmoFL, Table 1: nuclei, Dice of each site's own test images, %, {SELECTED}",
    rows=METHODS,
    measures={"Dice": read_client_score("dice", is_selected=True)},
    scales=NUCLEI_SCALES,
    **read_printed(
        "Dice",
        """
        FedAvg   73.44 ± 0.02  73.06 ± 0.24  72.52 ± 0.85  68.91 ± 0.34  67.33 ± 0.86  49.69 ± 0.34  67.49 ± 9.06
        FedProx  73.49 ± 0.07  73.11 ± 0.19  72.45 ± 0.94  69.01 ± 0.34  67.33 ± 0.86  49.56 ± 0.34  67.49 ± 9.12
        FedNova  73.40 ± 0.05  73.01 ± 0.38  71.50 ± 1.35  69.23 ± 0.34  67.46 ± 1.07  50.68 ± 0.34  67.55 ± 8.57
        FedAdam  73.53 ± 0.08  72.91 ± 0.24  71.74 ± 1.33  69.26 ± 0.50  66.69 ± 1.18  49.72 ± 0.11  67.31 ± 8.98
        FedBN    72.50 ± 0.81  72.51 ± 0.13  74.25 ± 0.28  64.84 ± 0.93  68.39 ± 1.13  69.11 ± 0.94  70.27 ± 3.47
        MOON     72.85 ± 0.46  71.92 ± 0.37  69.23 ± 2.29  69.00 ± 0.71  65.08 ± 0.73  48.26 ± 0.66  66.06 ± 9.13
        HarmoFL  74.98 ± 0.36  75.21 ± 0.57  76.63 ± 0.20  76.59 ± 0.77  73.94 ± 0.13  69.20 ± 1.23  74.42 ± 2.76
        """,
    ),
    average=AVERAGE,
    caveats=(
        "The code and the loader of the nuclei are not published.",
        NUCLEI_UNSTATED,
        DEVIATIONS,
        LETTERS.format("sites' folders"),
        *BASELINES,
        RELEASED_CODE,
    ),
)
_BY_SGD = flatten({"algorithm": {"optimizer": "None", "betas": "None", "momentum": "0.9", "learning_rate": "0.01"}})
PROSTATE_TABLE = Experiment(
    title=f"HarmoFL, Table 1: prostate MRI, Dice of each site's own test slices, %, {SELECTED}",
    rows=METHODS | {"FedNova": METHODS["FedNova"] | _BY_SGD},
    measures={"Dice": read_client_score("dice", is_selected=True)},
    scales=PROSTATE_SCALES,
    **read_printed(
        "Dice",
        """
        FedAvg   90.04 ± 1.27  94.31 ± 0.28  92.60 ± 0.66  92.21 ± 0.71  90.14 ± 0.27  89.36 ± 1.76  91.44 ± 1.91
        FedProx  90.65 ± 1.95  94.60 ± 0.30  92.64 ± 1.03  92.19 ± 0.15  89.36 ± 0.97  87.07 ± 1.53  91.08 ± 2.66
        FedNova  90.73 ± 0.41  94.26 ± 0.08  92.73 ± 1.29  91.91 ± 0.61  90.01 ± 0.87  89.94 ± 1.54  91.60 ± 1.70
        FedAdam  90.02 ± 0.29  94.84 ± 0.11  93.30 ± 0.79  91.70 ± 0.16  90.17 ± 1.46  87.77 ± 1.35  91.30 ± 2.53
        FedBN    92.68 ± 0.52  94.83 ± 0.47  93.77 ± 0.41  92.32 ± 0.19  93.20 ± 0.45  89.68 ± 0.60  92.75 ± 1.74
        MOON     91.79 ± 1.64  93.63 ± 0.21  93.01 ± 0.75  92.61 ± 0.53  91.22 ± 0.61  91.14 ± 0.88  92.23 ± 1.01
        HarmoFL  94.06 ± 0.47  95.26 ± 0.38  ?             93.51 ± 0.79  94.05 ± 0.50  93.53 ± 1.02  94.28 ± 0.80
        """,
    ),
    average=AVERAGE,
    caveats=(
        "HarmoFL's value of site C cannot be read; the average implies 95.27.",
        "Not in the paper: how FedNova, which knows the coefficients of SGD alone, was trained. Here by SGD at "
        ".01 with momentum .9, the others by Adam at .0001.",
        PROSTATE_UNSTATED,
        "Slices are shuffled before they are split, so that a patient's slices lie on both sides.",
        DEVIATIONS,
        LETTERS.format("sites' names"),
        *BASELINES,
        RELEASED_CODE,
    ),
)

_PICTURES_SMOKE = make_smoke_scale({}, {**STROKES, **diagnose_at_end(3, "contours")}, UNET_NETWORK)
_UNSTATED = (
    "Which methods and images the figure shows cannot be read from the text.",
    "Images and Dice are of the models after the last round, not of those that validation selects.",
    NETWORKS,
)
FIGURE_4 = {
    f"fig4-{task}": Experiment(
        title=f"HarmoFL, Fig. 4: {task}, test images with true and predicted outlines",
        rows=MAIN_METHODS,
        measures={
            "Dice of clients' own test images, %": read_mean_client_score("dice"),
            "the same without the background": read_mean_client_score("dice_foreground"),
        },
        scales={
            name: scale._replace(columns={"images": {}}) for name, scale in {**scales, "smoke": _PICTURES_SMOKE}.items()
        },
        draw=plot_segmentations,
        caveats=(*_UNSTATED, unstated),
    )
    for task, scales, unstated in (
        ("nuclei", NUCLEI_SCALES, NUCLEI_UNSTATED),
        ("prostate", PROSTATE_SCALES, PROSTATE_UNSTATED),
    )
}
