"""Records of the experiments on claims, and the settings that several of them share."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedjax_het.cli.runs.records import flatten

from ..papers.measures import read_test_score
from ..papers.spec import Measure, Settings
from .verdicts import Claim, Quantity


class Experiment(NamedTuple):
    """Methods on the same data with the same budget, and the claims about them.

    Attributes:
        title: in words.
        setting: data, network and budget, in words.
        differs: from the paper's setting, in words.
        data: {name: description} of the files; settings refer to them as {name}.
        config: the name of the embedded config, "pacs" or "pacs:fedrd".
        common: the settings of all runs.
        methods: {name: settings}.
        quantities: {name: (what is compared, how it is read from a run)}.
        claims: about the methods.
        columns: {name: settings}; a method's values are means over the columns.
        rates: learning rates, of which validation examples choose for each method and column; none: that of `common`.
        scope: what is validated, as in `study`.
        diagnostics: measured in the runs that are compared, before the first and before the last round.
    """

    title: str
    setting: str
    differs: str
    data: Mapping[str, str]
    config: str
    common: Settings
    methods: Mapping[str, Settings]
    quantities: Mapping[str, tuple[Quantity, Measure]]
    claims: Sequence[Claim]
    columns: Mapping[str, Settings] = {"": {}}
    rates: Sequence[str] = ("0.01", "0.03", "0.1", "0.3")
    scope: str = "clients"
    diagnostics: str = ""


FILES = {
    "fashion_mnist": "Fashion-MNIST's .npz file",
    "pacs": "PACS: the folder with an .npz file of images a domain",
    "cxr": "the X-rays' .npz file",
    "nuclei": "the nuclei's .npz file",
    "cifar10": "CIFAR-10's .npz file",
}
ACCURACY = Quantity("accuracy, %", 0.5)
ON_TEST = {"score": (ACCURACY, read_test_score())}


def make_budget(rounds: int, steps: int, batch_size: int) -> dict[str, str]:
    every = {"rounds": str(rounds), "evaluate_every": str(rounds), "checkpoint_every": "0"}
    return every | flatten({"algorithm": {"steps": str(steps), "epochs": "None", "batch_size": str(batch_size)}})


def pick(methods: Mapping[str, Settings], *names: str) -> dict[str, Settings]:
    return {name: methods[name] for name in names}


def needs(*names: str) -> dict[str, str]:
    return {name: FILES[name] for name in names}


SMALL_CNN = flatten(
    {"model": {"name": "cnn", "channels": "(8, 16, 32)", "hidden": "(32,)", "kernel": "3", "norm": "batch"}}
)
SMALL_MLP = flatten({"model": {"name": "mlp", "hidden": "(64,)"}})
