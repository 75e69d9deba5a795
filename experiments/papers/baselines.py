"""A comparison of all algorithms on real data with skewed classes, each with its best learning rate.

python -m experiments.papers baselines --what=fashion_mnist --scale=cpu --data=fashion_mnist.npz
"""

from collections.abc import Iterable, Mapping

from fedjax_het import participation
from fedjax_het.algorithms import ALGORITHMS, FAMILIES
from fedjax_het.cli.runs.records import flatten

from ..measures import read_client_score, read_final, read_mean_client_score, read_unseen_score
from ..spec import Experiment, Scale, Settings, make_smoke_scale
from .fedrd import SMOKE

UNSUITED = {
    "fedbn": "it keeps batch norms at the clients, and the networks have none",
}
"""{algorithm: the reason why it does not support the networks}."""
_LEFT_OUT_FAMILIES = {
    "No server": "all clients take part in its rounds, and ten in these",
    "Low-rank adapters": "it tunes a pretrained network, and these begin with random weights",
    "Prompts of CLIP": "it tunes a pretrained network, and these begin with random weights",
    "Clusters of clients": "it has a model for each group of clients, and these share a test set",
    "Drift and new classes": "it is for data that change with the round, and these do not",
    "Different capacities": "its clients train a part of the network, and these train all of it",
}
LEFT_OUT = UNSUITED | {
    algorithm.__name__: reason for family, reason in _LEFT_OUT_FAMILIES.items() for algorithm in FAMILIES[family]
}
"""{algorithm: the reason why it is not compared}."""
_SELECTION: Settings = {"participation.candidates": "20"}
SELECTIONS: Mapping[str, Settings] = {
    f"fedavg, {rule}": {
        "algorithm.name": "fedavg",
        "algorithm.weighting": "uniform",
        "participation.name": rule,
        **(_SELECTION if rule in ("pow_d", "rpow_d") else {}),
    }
    for rule in participation.SELECTIONS
}
"""{row: FedAvg with equal weights and a selection of clients by what they report}."""
_PUBLIC: Settings = {"data.public.name": "held_out", "data.public.fraction": "0.1"}
NEEDED: Mapping[str, Settings] = {
    "fedrep": {"algorithm.head_epochs": "1"},
    "feddf": {"algorithm.distillation_steps": "100", **_PUBLIC},
    "fedmd": _PUBLIC,
}
"""{algorithm: settings without which it could not train, or would train for much longer than the others}."""
RATES = {rate: {"algorithm.learning_rate": rate} for rate in ("0.03", "0.1", "0.3")}
_ALPHAS = {f"alpha {alpha}": {"data.partition.alpha": alpha} for alpha in ("0.1", "0.5")}
_EQUAL_BUDGET = {"data.partition.equal_sizes": "True", "algorithm.epochs": "1", "num_seeds": "3"}
_HELD_OUT = {"data.valid_fraction": "0.1", "data.client_test_fraction": "0.1"}
_CPU = {
    **_EQUAL_BUDGET,
    **_HELD_OUT,
    "data.name": "arrays",
    "algorithm.batch_size": "50",
}
_DATASET_SETTINGS: Mapping[str, Settings] = {
    "fashion_mnist": {
        **flatten({"model": {"name": "mlp", "hidden": "(64,)"}}),
        **flatten({"rounds": "100", "evaluate_every": "50", "layout": "vmapped"}),
    },
    "cifar10": {
        **flatten({"data.size": "16", "model": {"name": "cnn", "kernel": "3", "channels": "(16, 32)"}}),
        **flatten({"model.hidden": "(64,)", "rounds": "50", "evaluate_every": "25", "layout": "chunked(1)"}),
    },
}
_REDUCTION = "{network}, {rounds} rounds of one local epoch in batches of 50, which is ten steps for every client"

_CHOICE = (
    f"Each algorithm is trained at the learning rates {', '.join(RATES)}; the one that is best in the last round on "
    "the clients' validation examples is shown. All else are the defaults of the algorithm, but for one epoch of the "
    "head in `fedrep`, before one of the body, as in `fedpac`."
)


def select_rows(names: Iterable[str]) -> dict[str, Settings]:
    """Return {algorithm: its settings}."""
    return {name: {"algorithm.name": name, **NEEDED.get(name, {})} for name in names}


def make_experiment(dataset: str, title: str, network: str) -> Experiment:
    """Make the comparison of all algorithms on one data set.

    Args:
        dataset: the name of the data set and of its file in configs/.
        title: the title of the data set.
        network: a description of the network and of reductions of the images.
    """
    common: Settings = {**_CPU, **_DATASET_SETTINGS[dataset], "data.path": f"{{{dataset}}}"}
    reduction = _REDUCTION.format(network=network, rounds=common["rounds"])
    sizes = {"data.num_clients": "20", "cohort_size": "2", "rounds": "16"}  # for the defaults of SELECTIONS
    smoke = {**_EQUAL_BUDGET, **_HELD_OUT, **sizes, "num_seeds": "1"}
    data = {dataset: f"{title}'s .npz file"}
    return Experiment(
        title=f"{title} among 100 clients, ten a round: accuracy in % (in brackets the learning rate)",
        rows={**select_rows(name for name in ALGORITHMS if name not in LEFT_OUT), **SELECTIONS},
        measures={
            "the server's model, common test set": read_final("test/accuracy"),
            "own model, own test examples": read_mean_client_score(),
        },
        scales={
            "smoke": make_smoke_scale({"alpha 0.5": _ALPHAS["alpha 0.5"]}, smoke),
            "cpu": Scale(dataset, common, _ALPHAS, reduction, data),
        },
        choices=RATES,
        reference="fedavg",
        caveats=(
            _CHOICE,
            "Mean and standard deviation over three seeds of one partition, in which all clients have equally many "
            "examples. A client without a model of its own is scored by the server's.",
            *(f"`{name}` is left out: {reason}." for name, reason in LEFT_OUT.items()),
        ),
    )


DOMAINS = {name: {"data.unseen": name} for name in ("art_painting", "cartoon", "photo", "sketch")}
_BY_DOMAIN: Settings = {
    **flatten({"data": {"name": "arrays", "size": "16", "standardise": "False", "valid_fraction": "0.1"}}),
    **flatten({"model.hidden": "(64,)", "rounds": "20", "evaluate_every": "10", "num_seeds": "3"}),
}
"""Settings of comparisons with a client for each domain."""
_BY_DOMAIN_REDUCTION = "images of 16 x 16 in 0 to 1, {network} with batch norm, 20 rounds of one local epoch, {clients}"
PACS = Experiment(
    title="PACS, a domain left out in turn: accuracy on it in % (in brackets the learning rate)",
    rows=select_rows(["fedavg", "fedbn", *(algorithm.__name__ for algorithm in FAMILIES["Domain shift"])]),
    measures={"accuracy": read_unseen_score()},
    scales={
        "smoke": SMOKE,
        "cpu": Scale(
            "pacs",
            {
                **_BY_DOMAIN,
                **flatten({"data": {"path": "{pacs}", "client_test_fraction": "0.1"}}),
                **flatten({"model.channels": "(16, 32)", "layout": "chunked(1)"}),
            },
            DOMAINS,
            _BY_DOMAIN_REDUCTION.format(
                network="two 3 x 3 convolutions of 16 and 32 channels", clients="three clients of one domain each"
            ),
            {"pacs": "the folder with an .npz file of images a domain"},
        ),
    },
    average="mean",
    choices=RATES,
    reference="fedavg",
    caveats=(_CHOICE, "Mean and standard deviation over three seeds."),
)
DIGITS = PACS._replace(
    title="MNIST, MNIST-M and USPS, a client each: accuracy of its own model on its test set in % (in brackets the "
    "learning rate)",
    rows={
        **select_rows(["fedavg"]),
        "local": {"algorithm.name": "fedproto", "algorithm.lam": "0"},
        **select_rows(algorithm.__name__ for algorithm in FAMILIES["Personal models"]),
    },
    measures={"accuracy": read_client_score()},
    scales={
        "smoke": SMOKE._replace(
            common={**SMOKE.common, "data.client_test_fraction": "0.2"}, columns={"upright": {}, "inverted": {}}
        ),
        "cpu": Scale(
            "digits5",
            {
                **_BY_DOMAIN,
                **flatten({"data": {"path": "{digits}", "channels": "1", "equal_train": "True"}}),
                **flatten({"model": {"name": "mlp", "norm": "batch"}, "layout": "vmapped"}),
            },
            {name: {} for name in ("mnist", "mnist_m", "usps")},
            _BY_DOMAIN_REDUCTION.format(
                network="a perceptron with 64 hidden units",
                clients="equally many training examples for every client",
            ),
            {"digits": "the folder with mnist.npz, mnist_m.npz and usps.npz, each with a training and a test set"},
        ),
    },
)
EXPERIMENTS: Mapping[str, Experiment] = {
    "fashion_mnist": make_experiment("fashion_mnist", "Fashion-MNIST", "a perceptron with 64 hidden units"),
    "cifar10": make_experiment(
        "cifar10", "CIFAR-10", "images of 16 x 16 pixels, two 3 x 3 convolutions with 16 and 32 channels"
    ),
    "pacs": PACS,
    "digits": DIGITS,
}
