"""What HarmoFL's tables and figures compare, and the data and settings that several of them are run on."""

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
THREE = {name: METHODS[name] for name in ("FedAvg", "FedBN", "HarmoFL")}
PARTS = {
    "FedAvg": METHODS["FedAvg"],
    "amplitude only": {"algorithm.name": "harmofl", "algorithm.alpha": "0.0"},
    "HarmoFL": METHODS["HarmoFL"],
}
AVERAGE = "Avg."
SELECTED = "of the round that is best on validation"
NETWORKS = (
    "Not told by the paper: the networks of the compared methods; the released code holds HarmoFL's alone, whose norms "
    "learn and keep nothing. They have it too, but for FedBN, which would be FedAvg: its norms are those of its own "
    "authors' code, with scale, shift and running statistics."
)
BASELINES = (
    NETWORKS,
    "Not told by the paper: the baselines' own settings. FedProx's mu is .01, MOON's 1 at a temperature of .5 and with "
    "one earlier model, FedAdam's server rate .01 and tau .001 with decays .9 and .99, FedNova without a proximal "
    "term; HarmoFL weighs clients alike, as in its code, the others by their examples.",
)
RELEASED = (
    "The printed values are most likely of the released code, which replaces the mean of an image alone and keeps the "
    "first batch's for good (band 'dc', decay 0); here all amplitudes are replaced and averaged, as in the paper's "
    "equations."
)
LETTERS = "Not told by the paper: which letter is which site; here they are in the order of the {}."


def seen_at_the_end(rounds: int, diagnostic: str) -> Settings:
    """A look at the last of so many rounds, whose model is the run's last; and at the first."""
    return {"diagnostics": diagnostic, "diagnose_every": str(rounds - 1)}


# ---- classification ------------------------------------------------------------------------------------------------
X_RAYS = {
    "data.name": "arrays",
    "data.path": "{cxr}",
    "data.size": "48",
    "data.standardise": "False",  # amplitude normalisation is of pixels in 0..1
    "data.valid_fraction": "0.16",
    "data.client_test_fraction": "0.2",
    "data.test_fraction": "0.0",
    "algorithm.learning_rate": "0.005",
    "algorithm.momentum": "0.9",  # for all methods, as in the paper; HarmoFL alone has it by itself
    "algorithm.weight_decay": "1e-4",
    "rounds": "32",
    "num_seeds": "3",
    "evaluate_every": "2",
}
FOR_CAMELYON = (
    "chest X-rays of four sources (48 x 48, 1,367 images, three classes) for patches of five hospitals, a small "
    "convolutional network for a DenseNet-121, 32 rounds for 100 at a rate of .005 for .001, every second one validated"
)
X_RAY_DATA = {"cxr": "the X-rays' .npz file"}
CAMELYON = {"data.path": "{camelyon}", "num_seeds": "3", "evaluate_every": "1"}
CAMELYON_DATA = {"camelyon": "the folder of Camelyon17"}
DIGITS = {
    "data.num_clients": "3",
    "data.valid_fraction": "0.16",
    "model.name": "cnn",
    "model.channels": "(4,)",
    "model.hidden": "(8,)",
    "model.norm": "batch",
}
A_CNN = "a small convolutional network"


# ---- segmentation ----------------------------------------------------------------------------------------------------
SITES = {letter: {} for letter in "ABCDEF"}
NUCLEI = {
    "data.name": "arrays",
    "data.path": "{nuclei}",
    "data.num_clients": "3",
    "data.size": "128",
    "model.width": "0.25",
    "algorithm.learning_rate": "0.02",
    "algorithm.batch_size": "8",
    "rounds": "40",
    "evaluate_every": "2",
}
FOR_SIX_SITES = (
    "three sites for six (116 tiles of 128 x 128 for 256 x 256), a quarter of the U-Net's channels, 40 rounds for 500 "
    "at a rate of .02 for .0001, every second one validated, batches of 8, one seed for three"
)
NUCLEI_DATA = {"nuclei": "the nuclei's .npz file"}
SITES_DATA = {"nuclei": "the folder with a folder for each site"}
PROSTATE_DATA = {"prostate": "the folder with a folder for each site"}
STROKES = {
    "layout": "chunked(1)",  # the quickest to compile
    "data.masks": "True",
    "data.domains": "True",
    "data.partition.name": "by_domain",
    "data.num_clients": "4",
    "data.valid_fraction": "0.16",
    "data.test_fraction": "0.0",
    "model.name": "unet",
    "model.width": "0.125",
    "model.levels": "1",
    "task_loss": "dice",
}
A_UNET = "their strokes as masks, a U-Net of one level with an eighth of the channels"
