"""Experiments on the claims of FedLD, which were written down before the first run."""

from experiments.measures import mean_quantity, read_first, read_last, read_server_step
from experiments.papers import fedld
from experiments.spec import Claim, Quantity
from fedjax_het.cli.runs.records import flatten

from .settings import IMAGENET, ON_TEST, PRETRAINED_RATES, SMALL_CNN, SMALL_MLP, make_budget, make_experiment, pick

_PARTS = {
    "margin only": fedld.PARTS["margin only"],
    "principal only": fedld.PARTS["principal only"],
}
_FEDLD = {"FedLD": fedld.METHODS["FedLD"]}
_FEDLD_BUDGET = "these learning rates instead of .01, no momentum, no weight decay, and lambda .03 in all runs"
_STEPS = {
    f"{quantity}, {when}": Quantity(read, f"{title}, {when} round", 0.05, is_lower=quantity == "cosine", digits=2)
    for quantity, title in (
        ("length", "length of the server's step relative to the plain mean of the same updates"),
        ("cosine", "cosine between the server's step and the plain mean of the same updates"),
    )
    for when, read in (
        ("first", read_server_step(quantity, is_first=True)),
        ("last", read_server_step(quantity)),
    )
}
_FEW_CLIENTS = flatten(
    {
        "data": {"path": "{fashion_mnist}", "num_clients": "5", "valid_fraction": "0.1", "client_test_fraction": "0.0"},
        "data.partition.alpha": "0.5",
        "cohort_size": "0",
        "layout": "vmapped",
    }
)
_ON_FASHION = {**_FEW_CLIENTS, **SMALL_MLP, **make_budget(40, 10, 50)}
_VARIANTS = {
    "FedLD half steps": {"algorithm.name": "fedld", "algorithm.server_learning_rate": "0.5"},
    "FedLD all axes": {"algorithm.name": "fedld", "algorithm.fraction": "1.0"},
    "FedLD one axis": {"algorithm.name": "fedld", "algorithm.fraction": "0.2"},
    "FedAvg steps of 1.5": {"algorithm.name": "fedavg", "algorithm.server_learning_rate": "1.5"},
    # The last two were added after the step lengths of FedLD were known.
    "FedLD double steps": {"algorithm.name": "fedld", "algorithm.server_learning_rate": "2.0"},
    "FedLD one factor": {"algorithm.name": "fedld", "algorithm.aggregation.correction": "whole"},
}
_FEDLD_BASELINES = ("FedAvg", "FedProx", "FedGH")
_WHY = ""  # not a claim of the paper
_VARIANT_TEXTS = {
    "FedLD with half the step length": "FedLD half steps",
    "FedLD with all five axes": "FedLD all axes",
    "FedLD with one axis": "FedLD one axis",
    "FedAvg with steps 1.5 times as long": "FedAvg steps of 1.5",
    "FedLD with double the step length": "FedLD double steps",
    "FedLD with one factor for all axes": "FedLD one factor",
}
_MORE_IS_BETTER = (
    Claim("FedLD outperforms", "Table 1", "FedLD", _FEDLD_BASELINES),
    Claim("the margin alone outperforms", "Table 2", "margin only", ("FedAvg",)),
    Claim("principal directions alone outperform", "Table 2", "principal only", ("FedAvg",)),
    Claim("both parts outperform", "Table 2", "FedLD", ("margin only", "principal only")),
)
FEDLD_FASHION = make_experiment(
    title="FedLD on Fashion-MNIST with five clients",
    setting="Fashion-MNIST, five clients with class proportions and sizes from Dirichlet(.5), full participation; "
    "perceptron with 64 hidden units; 40 rounds of 10 local steps, batch size 50; accuracy on the common test set",
    differs="natural images instead of Retina, a perceptron with random initial weights instead of a ResNet-50 "
    f"pretrained on ImageNet, 40 rounds of 10 steps instead of 200 rounds of one epoch, {_FEDLD_BUDGET}; one of the "
    "three splits; without FedPAC, and without FedBN because the network has no normalization layers",
    data="fashion_mnist",
    config="fashion_mnist",
    common=_ON_FASHION,
    methods={**pick(fedld.METHODS, *_FEDLD_BASELINES), **_FEDLD, **_PARTS, **_VARIANTS},
    measures={**ON_TEST, **_STEPS},
    claims=(
        *_MORE_IS_BETTER,
        *(
            Claim(f"FedLD's step {text} that of", _WHY, "FedLD", ("FedAvg",), f"{quantity}, {when}")
            for quantity, text in (("length", "is longer than"), ("cosine", "differs in direction from"))
            for when in ("first", "last")
        ),
        *(
            Claim(f"{text} outperforms", _WHY, method, (other,))
            for text, method in _VARIANT_TEXTS.items()
            for other in ("FedLD", "FedAvg")
        ),
    ),
    rates=("0.03", "0.1", "0.3", "1.0"),
    diagnostics="weights,conflict,norms",
)
_PACS_CLIENTS = flatten(
    {
        "data": {"name": "arrays", "path": "{pacs}", "size": "28", "unseen": "", "num_clients": "4"},
        "data.client_test_fraction": "0.0",
        "data.test_fraction": "0.2",
        "data.valid_fraction": "0.1",
        "layout": "chunked(1)",
        "personal_on_test": "True",
    }
)
_PACS_BASELINES = ("FedAvg", "FedProx", "FedBN", "FedGH")
_ONE_DOMAIN = {
    "methods": {**pick(fedld.METHODS, "FedAvg"), **_FEDLD, **_PARTS, **pick(fedld.METHODS, *_PACS_BASELINES)},
    "measures": ON_TEST,
    "claims": (Claim("FedLD outperforms", "Table 1", "FedLD", _PACS_BASELINES), *_MORE_IS_BETTER[1:]),
}
_ON_PACS = {**_PACS_CLIENTS, **SMALL_CNN, **make_budget(25, 8, 32)}
_NETWORK = "three convolutions of 8, 16 and 32 channels with batch norm; 25 rounds of 8 local steps, batch size 32"
_COVID_FL = (
    "the twelve sites of COVID-FL, a small network with batch norm and random initial weights instead of a ResNet-50 "
    "pretrained on ImageNet, 25 rounds of 8 steps instead of 200 rounds of one epoch, "
    f"{_FEDLD_BUDGET}; without FedPAC"
)
FEDLD_PACS = make_experiment(
    title="FedLD on PACS, one domain per client",
    setting=f"PACS, 28 x 28, four clients of one domain each, full participation; {_NETWORK}; accuracy on the common "
    "test set",
    differs=f"domains of drawings and photos instead of {_COVID_FL}",
    data="pacs",
    config="pacs",
    common=_ON_PACS,
    **_ONE_DOMAIN,
)
FEDLD_PRETRAINED = make_experiment(
    title="FedLD on PACS from ImageNet weights, one domain per client",
    setting="PACS, 96 x 96, four clients of one domain each, all of them in each round; EfficientNet-Lite0 pretrained "
    "on ImageNet, of which the last convolution, its norm and the head are trained; 12 rounds of 15 local steps, batch "
    "size 32; accuracy on the common test set",
    differs="domains of drawings and photos instead of COVID-FL's twelve sites, EfficientNet-Lite0 with only its last "
    f"layers trained instead of a ResNet-50, 12 rounds of 15 steps instead of 200 of an epoch, {_FEDLD_BUDGET}; FedPAC "
    "left out",
    data=("pacs", "efficientnet_lite0"),
    config="pacs",
    common={**_PACS_CLIENTS, "data.size": "96", **IMAGENET, **make_budget(12, 15, 32)},
    **_ONE_DOMAIN,
    rates=PRETRAINED_RATES,
)
FEDLD_X_RAYS = make_experiment(
    title="FedLD on chest X-rays, one source per client",
    setting=f"Chest X-rays, 32 x 32, four clients of one source each, full participation; {_NETWORK}; accuracy on the "
    "common test set",
    differs=f"1,367 images of four sources instead of {_COVID_FL}",
    data="cxr",
    config="chest_xray",
    common={**_ON_PACS, "data.path": "{cxr}", "data.size": "32"},
    **_ONE_DOMAIN,
)
_DECOMPOSED = {
    name: Quantity(read(mean_quantity("decomposition", key)), title, 0.05, is_lower=True, is_relative=True, digits=4)
    for name, title, read, key in (
        ("shift", "absolute shift loss, first round", read_first, "absolute_shift"),
        ("shift, last", "absolute shift loss, last round", read_last, "absolute_shift"),
        ("aggregation", "absolute aggregation loss, first round", read_first, "absolute_aggregation"),
        ("aggregation, last", "absolute aggregation loss, last round", read_last, "absolute_aggregation"),
        ("signed", "aggregation loss with its sign, first round", read_first, "aggregation"),
        ("signed, last", "aggregation loss with its sign, last round", read_last, "aggregation"),
    )
}
_SHIFTS, _AGGREGATIONS = ("shift", "shift, last"), ("aggregation", "aggregation, last", "signed", "signed, last")
FEDLD_LOSSES = make_experiment(
    title="FedLD's decomposition of the loss on Fashion-MNIST with five clients",
    setting="The federation of FedLD on Fashion-MNIST above, with a learning rate of .1 for all methods; the loss of a "
    "round on all training examples, decomposed by FedLD's Eq. 2, in the first round, in which all methods start from "
    "the same model, and in the last, in which each method starts from its own model",
    differs="a perceptron instead of a ResNet-50, 10 steps instead of an epoch, only alpha .5 of the five values in "
    "the figure; the figure shows one round, and the paper does not state its initial model",
    data="fashion_mnist",
    config="fashion_mnist",
    common={**_ON_FASHION, "algorithm.learning_rate": "0.1"},
    methods={"FedAvg": fedld.METHODS["FedAvg"], **_PARTS},
    measures=_DECOMPOSED,
    claims=(
        *(Claim("the margin has less shift than", "Fig. 2", "margin only", ("FedAvg",), name) for name in _SHIFTS),
        *(
            Claim("principal directions have less aggregation loss than", "Fig. 2", "principal only", ("FedAvg",), name)
            for name in _AGGREGATIONS
        ),
    ),
    rates=(),
    diagnostics="decomposition",
)
