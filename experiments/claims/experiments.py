"""Experiments on the claims of FedMGC, FedRD and HarmoFL, written down before the first run, and the list of all."""

from collections.abc import Mapping

from experiments.measures import read_loss_rise, read_mean_client_score, read_minimum_distance, read_unseen_score
from experiments.papers import fedld, fedmgc, fedrd, harmofl_segmentation
from experiments.spec import Claim, Experiment, Quantity
from fedjax_het.cli.runs.records import flatten

from .fedld import FEDLD_FASHION, FEDLD_LOSSES, FEDLD_PACS, FEDLD_PRETRAINED, FEDLD_X_RAYS
from .settings import (
    IMAGENET,
    MARGIN,
    ON_TEST,
    PRETRAINED_RATES,
    SMALL_CNN,
    SMALL_MLP,
    TITLE,
    make_budget,
    make_experiment,
    pick,
)

# ---- FedMGC ----------------------------------------------------------------------------------------------------------
_DGC = ("FedAvg (ce) + DGC", "FedProx (ce) + DGC")
_FEDMGC_BASELINES = ("FedAvg", "FedProx", "FedNova")
_FEDMGC = {
    "methods": {**pick(fedmgc.METHODS, *_FEDMGC_BASELINES, "FedMGC"), **pick(fedmgc.ABLATION, *_DGC)},
    "measures": ON_TEST,
    "claims": (
        Claim("FedMGC outperforms", "Figs. 11, 12", "FedMGC", _FEDMGC_BASELINES),
        Claim("DGC on FedAvg outperforms", "Fig. 6", _DGC[0], ("FedAvg",)),
        Claim("DGC on FedProx outperforms", "Fig. 6", _DGC[1], ("FedProx",)),
        Claim("FedMGC outperforms", "Fig. 6", "FedMGC", _DGC),
    ),
}
_FEDMGC_DATA = flatten(
    {
        "data": {"valid_fraction": "0.1", "client_test_fraction": "0.0"},
        "data.partition": {"alpha": "1.0", "equal_sizes": "True"},
    }
)
_FEDMGC_DIFFERS = (
    "these learning rates instead of .001; fixed gamma .5, beta 1.5 and lambda .5 instead of tuned gamma and beta"
)
FEDMGC_FASHION = make_experiment(
    title="FedMGC on Fashion-MNIST",
    setting="Fashion-MNIST, 100 clients of equal size, class proportions from Dirichlet(1), ten clients per round; "
    "perceptron with 64 hidden units; 40 rounds of 10 local steps, batch size 32; accuracy on the common test set",
    differs="a perceptron instead of two convolutions, 40 rounds of 10 steps instead of 400 of about 40 steps with "
    f"batch size 128, {_FEDMGC_DIFFERS}",
    data="fashion_mnist",
    config="fashion_mnist",
    common={
        **SMALL_MLP,
        **make_budget(40, 10, 32),
        **_FEDMGC_DATA,
        **{"data.path": "{fashion_mnist}", "layout": "vmapped"},
    },
    **_FEDMGC,
    rates=("0.03", "0.1", "0.3", "1.0"),
)
FEDMGC_CIFAR = make_experiment(
    title="FedMGC on CIFAR-10",
    setting="CIFAR-10, 100 clients of equal size, class proportions from Dirichlet(1), ten clients per round; "
    "convolutions of 6 and 16 channels; 25 rounds of 8 local steps, batch size 32; accuracy on the common test set",
    differs="without the dense layers of 120 and 84 units, 25 rounds of 8 steps instead of 400 of about 40 steps with "
    f"batch size 128, {_FEDMGC_DIFFERS}",
    data="cifar10",
    config="cifar10",
    common={
        **_FEDMGC_DATA,
        **flatten({"model": {"name": "lenet", "hidden": "()"}, "data.path": "{cifar10}", "data.name": "arrays"}),
        **make_budget(25, 8, 32),
        "layout": "chunked(1)",
    },
    **_FEDMGC,
    rates=("0.03", "0.1", "0.3"),
)

# ---- FedRD -----------------------------------------------------------------------------------------------------------
_FEDRD_PARTS = {
    "FedRD without debiasing": fedrd.ABLATION["w/o DC"],
    "FedRD without guidance": fedrd.ABLATION["w/o GGA"],
}
_HELD_OUT = {
    "config": "pacs",
    "measures": {"score": Quantity(read_unseen_score(), TITLE, MARGIN)},
    "columns": {name: {"data.unseen": name} for name in ("art_painting", "cartoon", "photo", "sketch")},
}
_FEDRD = {**pick(fedrd.METHODS, "FedAvg", "FedRD"), **_FEDRD_PARTS, **fedrd.METHODS}
_FEDRD_CLAIMS = (
    Claim("FedRD outperforms", "Table 2", "FedRD", tuple(name for name in fedrd.METHODS if name != "FedRD")),
    Claim("the guided aggregation alone outperforms", "Table 5", "FedRD without debiasing", ("FedAvg",)),
    Claim("the debiased classifier alone outperforms", "Table 5", "FedRD without guidance", ("FedAvg",)),
    Claim("both parts outperform", "Table 5", "FedRD", tuple(_FEDRD_PARTS)),
)
_PACS = flatten({"data": {"name": "arrays", "path": "{pacs}", "valid_fraction": "0.1", "test_fraction": "0.0"}})
FEDRD_PACS = make_experiment(
    title="FedRD on PACS, each domain held out in turn",
    setting="PACS, 28 x 28, each domain held out in turn, three clients of one domain each; a tenth of their images "
    "for training and a tenth for validation; three convolutions of 8, 16 and 32 channels with batch norm; 12 rounds "
    "of 30 local steps, batch size 16, which are one to three epochs; accuracy on the held-out domain, mean over the "
    "four",
    differs="28 x 28 instead of 224 x 224 pixels, a small network with random initial weights instead of a ResNet "
    "pretrained on ImageNet, a tenth of the images without augmentation, 12 rounds instead of 40, these learning rates "
    "instead of .001, no momentum, no weight decay",
    data="pacs",
    common={
        **_PACS,
        **SMALL_CNN,
        **make_budget(12, 30, 16),
        **{"data.size": "28", "data.client_test_fraction": "0.8", "layout": "chunked(1)"},
    },
    methods=_FEDRD,
    claims=_FEDRD_CLAIMS,
    **_HELD_OUT,
    rates=("0.01", "0.03", "0.1"),
)
FEDRD_PRETRAINED = make_experiment(
    title="FedRD on PACS from ImageNet weights, each domain held out in turn",
    setting="PACS, 96 x 96, each domain held out in turn, three clients of one domain each; a tenth of their "
    "images for training and a tenth for validation; EfficientNet-Lite0 pretrained on ImageNet, of which the last "
    "convolution, its norm and the head are trained; 12 rounds of 15 local steps, batch size 32, which are one to "
    "three epochs; accuracy on the held-out domain, mean over the four",
    differs="96 x 96 instead of 224 x 224 pixels, EfficientNet-Lite0 with only its last layers trained instead of "
    "ResNets, a tenth of the images without augmentation, 12 rounds of one to three epochs instead of 40 of five, "
    "these learning rates instead of .001, no momentum, no weight decay",
    data=("pacs", "efficientnet_lite0"),
    common={
        **_PACS,
        **IMAGENET,
        **make_budget(12, 15, 32),
        **{"data.size": "96", "data.client_test_fraction": "0.8", "layout": "chunked(1)"},
    },
    methods={**_FEDRD, "FedLD": fedld.METHODS["FedLD"]},
    claims=(*_FEDRD_CLAIMS, Claim("FedLD outperforms", "", "FedLD", ("FedAvg",))),
    **_HELD_OUT,
    rates=PRETRAINED_RATES,
)

# ---- HarmoFL ---------------------------------------------------------------------------------------------------------
_HARMOFL = harmofl_segmentation.METHODS
_HARMOFL_BASELINES = tuple(name for name in _HARMOFL if name != "HarmoFL")
_PLAINER = ("FedAvg", "amplitude only")
_RISE = "increase of clients' loss at distance .4 from the server's model"
_DISTANCE = "distance to the lowest loss of a client"
_OWN_SETS = flatten(
    {
        "data": {"name": "arrays", "valid_fraction": "0.16", "client_test_fraction": "0.2", "test_fraction": "0.0"},
        "algorithm": {"momentum": "0.9", "weight_decay": "1e-4"},
        "layout": "chunked(1)",
    }
)
_ON_NUCLEI = {"data": "nuclei", "config": "nuclei", "rates": ("0.1", "0.3", "1.0", "3.0")}
_NUCLEI = {
    **_OWN_SETS,
    **make_budget(30, 5, 8),
    **flatten({"data": {"path": "{nuclei}", "size": "48", "num_clients": "3"}}),
    **flatten({"model": {"width": "0.125", "levels": "2"}}),
}
_NUCLEI_SETTING = (
    "116 tiles of nuclei, {size}, one client per site; U-Net of two levels with an eighth of the channels, soft Dice; "
    "momentum .9; 30 rounds of 5 local steps, batch size 8; "
)
_NUCLEI_DIFFERS = (
    "three sites instead of six, {size} instead of 256 x 256 pixels, a smaller U-Net, 30 rounds of 5 steps instead of "
    "500 rounds of one epoch, SGD with these learning rates instead of Adam with .0001, the last round instead of the "
    "best on validation"
)
HARMOFL_NUCLEI = make_experiment(
    title="HarmoFL on nuclei of three sites",
    setting=_NUCLEI_SETTING.format(size="48 x 48")
    + "mean over clients of Dice on their own test images after the last round",
    differs=_NUCLEI_DIFFERS.format(size="48 x 48"),
    **_ON_NUCLEI,
    common=_NUCLEI,
    methods={**pick(_HARMOFL, "FedAvg", "HarmoFL", "FedBN"), **_HARMOFL},
    measures={
        "score": Quantity(read_mean_client_score("dice"), "Dice, %", MARGIN),
    },
    claims=(Claim("HarmoFL outperforms", "Table 1", "HarmoFL", _HARMOFL_BASELINES),),
)
HARMOFL_FLATNESS = make_experiment(
    title="HarmoFL's loss landscape around the server's model on nuclei",
    setting=_NUCLEI_SETTING.format(size="32 x 32")
    + "cross-entropy along two random directions, normalized by filter, around the server's model before the last "
    "round, on clients' training images",
    differs=f"nuclei instead of histology, {_NUCLEI_DIFFERS.format(size='32 x 32')}",
    **_ON_NUCLEI,
    common={**_NUCLEI, "data.size": "32"},
    methods={**pick(_HARMOFL, "FedAvg", "HarmoFL"), "amplitude only": harmofl_segmentation.PARTS["amplitude only"]},
    measures={
        "rise": Quantity(read_loss_rise(0.4), _RISE, 0.05, is_lower=True, is_relative=True, digits=3),
        "distance": Quantity(read_minimum_distance, _DISTANCE, 0.05, is_lower=True, is_relative=True, digits=3),
    },
    claims=(
        Claim("HarmoFL's optimum is flatter than that of", "Fig. 1", "HarmoFL", _PLAINER, "rise"),
        Claim("clients' optima are closer in HarmoFL than in", "Fig. 1", "HarmoFL", _PLAINER, "distance"),
    ),
    diagnostics="landscape",
)
HARMOFL_X_RAYS = make_experiment(
    title="HarmoFL on chest X-rays of four sources",
    setting="Chest X-rays, 32 x 32, four clients of one source each; three convolutions of 8, 16 and 32 channels with "
    "batch norm; momentum .9; 25 rounds of 8 local steps, batch size 32; mean over clients of the accuracy on their "
    "own test images after the last round",
    differs="1,367 X-rays of four sources instead of histology of five hospitals, a small network instead of a "
    "DenseNet-121, 25 rounds of 8 steps instead of 100 rounds of one epoch, these learning rates instead of .001, the "
    "last round instead of the best on validation",
    data="cxr",
    config="chest_xray",
    common={
        **_OWN_SETS,
        **SMALL_CNN,
        **make_budget(25, 8, 32),
        **flatten({"data": {"path": "{cxr}", "size": "32", "standardise": "False"}}),
    },
    methods={**pick(_HARMOFL, "FedAvg", "HarmoFL"), **_HARMOFL},
    measures={"score": Quantity(read_mean_client_score(), TITLE, MARGIN)},
    claims=(Claim("HarmoFL outperforms", "Table 2", "HarmoFL", _HARMOFL_BASELINES),),
    rates=("0.003", "0.01", "0.03", "0.1"),
)

TOPICS: Mapping[str, Mapping[str, Experiment]] = {
    "fedld": {
        "fedld_fashion_mnist": FEDLD_FASHION,
        "fedld_losses": FEDLD_LOSSES,
        "fedld_pacs": FEDLD_PACS,
        "fedld_pretrained": FEDLD_PRETRAINED,
        "fedld_x_rays": FEDLD_X_RAYS,
    },
    "fedmgc": {"fedmgc_fashion_mnist": FEDMGC_FASHION, "fedmgc_cifar10": FEDMGC_CIFAR},
    "fedrd": {"fedrd_pacs": FEDRD_PACS, "fedrd_pretrained": FEDRD_PRETRAINED},
    "harmofl": {
        "harmofl_nuclei": HARMOFL_NUCLEI,
        "harmofl_flatness": HARMOFL_FLATNESS,
        "harmofl_x_rays": HARMOFL_X_RAYS,
    },
}
"""{topic, a section of the page: {name, a folder of runs: experiment}}."""
