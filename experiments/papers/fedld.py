"""FedLD's experiments: Zeng et al., Tackling Data Heterogeneity in Federated Learning via Loss Decomposition.

python -m experiments.papers fedld --what=table2 --scale=cpu --data=cxr.npz --workdir=runs/fedld
"""

from collections.abc import Mapping
from types import MappingProxyType

from fedjax_het.cli.runs.records import flatten

from ..figures import plot_columns
from ..measures import mean_quantity, read_first, read_test_score
from ..spec import Experiment, Scale, Settings, make_smoke_scale, read_printed

METHODS = {
    "FedAvg": {"algorithm.name": "fedavg"},
    "FedProx": {"algorithm.name": "fedprox", "algorithm.form": "norm_per_tensor"},
    "FedBN": {"algorithm.name": "fedbn"},
    "FedPAC": {"algorithm.name": "fedpac"},
    "FedGH": {"algorithm.name": "hierarchical"},
    "FedLD": {"algorithm.name": "fedld"},
}
PARTS = {
    "neither": {"algorithm.name": "fedavg"},
    "principal only": {"algorithm.name": "fedld", "algorithm.lam": "0.0"},
    "margin only": {"algorithm.name": "fedld", "algorithm.principal": "False"},
    "both": {"algorithm.name": "fedld"},
}
EVALUATION = {"personal_on_test": "True"}
SMALL = {**EVALUATION, "model.norm": "batch"}  # FedBN needs norms
NO_HELD_OUT = {"valid_fraction": "0.0", "client_test_fraction": "0.0"}  # accuracy is measured on the common test list
PAPER = EVALUATION | flatten(
    {
        "model": {"name": "resnet50"},
        "data": {"size": "384", **NO_HELD_OUT},
        "algorithm": {"momentum": "0.5", "weight_decay": "0.0005"},
        "num_seeds": "3",
    }
)
IMAGENET = "ImageNet weights of ResNet-50"
X_RAYS = EVALUATION | flatten(
    {
        "data": {"name": "arrays", "path": "{cxr}", "size": "48", "num_clients": "5", **NO_HELD_OUT},
        "data.test_fraction": "0.2",
        "data.partition.name": "dirichlet",
        "rounds": "30",
        "num_seeds": "3",
        "evaluate_every": "10",
    }
)
RETINA_REDUCTION = (
    "chest X-rays of four sources (48 x 48, 1,367 images, three classes) for Retina, a small convolutional network "
    "that starts afresh for a ResNet-50 from ImageNet, 30 rounds for 200, plain SGD at .02 for .01 with momentum, "
    "batches of 32 for 50"
)
SPLIT_CAVEAT = (
    "The splits' alpha is printed as 100, .1, .5; split 2 is called moderate, so .1 is taken for a misprint of 1."
)
RELEASED_CODE = (
    "The released code trains in evaluation mode, warms the rate up, and departs from the paper's FedLD (here "
    "preset='released'). The rows are of the paper's FedLD, without either.",
    "Not in the paper: momentum, weight decay and initial weights; here .5, .0005 and ImageNet's, as in the "
    "released code. How many seeds; here 3 (one in the code). No deviations are printed.",
)
BASELINES = (
    "The released code's FedGH is FedDM's hierarchical de-conflicting, whose numbers are the printed ones; the row "
    "runs that (`hierarchical`), not the method of the FedGH paper (`fedgh`).",
    "The released code's FedProx pulls by the norm of each tensor, not by its square; the row runs that.",
    "Not in the paper: the baselines' own settings. As in the released code FedProx's mu is .01, FedPAC's lambda "
    "1, its head trained for 1 epoch at .1, FedGH's eps 1e-7, its decay .99; FedPAC's weights below .001 are dropped, "
    "as by its authors.",
)


def _on_x_rays(
    columns: Mapping[str, Settings], settings: Settings = MappingProxyType({}), reduction: str = RETINA_REDUCTION
) -> Scale:
    data = {"cxr": "the X-rays' .npz file"}
    return Scale("chest_xray", {**X_RAYS, **settings}, columns, reduction, data)


def _on_retina(columns: Mapping[str, Settings], settings: Settings = MappingProxyType({})) -> Scale:
    common = {**PAPER, "data.path": "{retina}", **settings}
    return Scale("retina", common, columns, "", {"retina": "the folder Retina"}, IMAGENET)


SPLITS = {
    "smoke": make_smoke_scale({"S1": {"data.partition.alpha": "100"}}, SMALL),
    "cpu": _on_x_rays({f"S{i}": {"data.partition.alpha": alpha} for i, alpha in enumerate(("100", "1", "0.5"), 1)}),
    "paper": _on_retina({f"S{i}": {"data.split": f"5_clients/split_{i}"} for i in (1, 2, 3)}),
}
"""Retina's three splits, and Dirichlet partitions of X-rays that are as uneven."""

LAMBDAS = {"S1": "0.1", "S2": "0.03", "S3": "0.03"}

TABLE_1 = Experiment(
    title="FedLD, Table 1: accuracy on Retina's common test set, %",
    rows=METHODS,
    measures={"accuracy": read_test_score()},
    scales=SPLITS,
    **read_printed(
        "accuracy",
        """
        FedAvg   83.63  82.26  81.13
        FedProx  84.17  83.53  81.20
        FedBN    83.91  75.91  65.25
        FedPAC   78.01  71.64  52.81
        FedGH    83.90  83.33  81.56
        FedLD    85.20  83.83  82.30
        """,
    ),
    tuned={("FedLD", split): {"algorithm.lam": lam} for split, lam in LAMBDAS.items()},
    caveats=(
        SPLIT_CAVEAT,
        'The text says that the lead over FedGH grows "from .04 to 2.20"; the table gives 1.30, .50 and .74.',
        *BASELINES,
        *RELEASED_CODE,
    ),
)
COVID = Experiment(
    title="FedLD, Table 1: accuracy on COVID-FL's common test set, %",
    rows=METHODS,
    measures={"accuracy": read_test_score()},
    scales={
        "smoke": make_smoke_scale({"COVID-FL": {"data.partition.alpha": "0.5"}}, SMALL),
        "cpu": _on_x_rays(
            {"COVID-FL": {}},
            {"data.partition.name": "by_domain", "data.num_clients": "4"},
            RETINA_REDUCTION.replace("for Retina", "(a source a client) for COVID-FL's twelve sites"),
        ),
        "paper": Scale(
            "covid_fl",
            {**PAPER, "data.path": "{covid}"},
            {"COVID-FL": {}},
            "",
            {"covid": "the folder COVID-FL"},
            IMAGENET,
        ),
    },
    **read_printed(
        "accuracy",
        """
        FedAvg   79.86
        FedProx  81.88
        FedBN    56.34
        FedPAC   81.63
        FedGH    82.26
        FedLD    83.87
        """,
    ),
    tuned={("FedLD", "COVID-FL"): {"algorithm.lam": "0.01"}},
    caveats=(*BASELINES, *RELEASED_CODE),
)
_FIFTY_CLIENTS = {"data.num_clients": "50", "cohort_size": "5"}
TABLE_3 = Experiment(
    title="FedLD, Table 3: fifty clients, five of them a round, accuracy on Retina's common test set, %",
    rows=METHODS,
    measures={"accuracy": read_test_score()},
    scales={
        "smoke": make_smoke_scale({"Retina": {"data.partition.alpha": "0.5"}}, SMALL),
        "cpu": _on_x_rays({"Retina": {}}, {**_FIFTY_CLIENTS, "data.partition.alpha": "0.5"}),
        "paper": _on_retina(
            {"Retina": {}}, {**_FIFTY_CLIENTS, "data.partition.name": "dirichlet", "data.partition.alpha": "0.5"}
        ),
    },
    **read_printed(
        "accuracy",
        """
        FedAvg   67.43
        FedProx  69.87
        FedBN    68.40
        FedPAC   66.59
        FedGH    70.33
        FedLD    71.30
        """,
    ),
    tuned={("FedLD", "Retina"): {"algorithm.lam": "0.03"}},
    caveats=(
        "The released code stops with an IndexError where fewer clients than all take part.",
        "Not in the paper: FedLD's lambda with fifty clients; here .03, as for the split of the same alpha.",
        *BASELINES,
        *RELEASED_CODE,
    ),
)

TABLE_2 = Experiment(
    title="FedLD, Table 2: its two parts, accuracy on Retina's common test set, %",
    rows=PARTS,
    measures={"accuracy": read_test_score()},
    scales=SPLITS,
    **read_printed(
        "accuracy",
        """
        neither         83.63  82.26  81.13
        principal only  84.76  82.67  81.66
        margin only     84.63  83.5   81.96
        both            85.20  83.83  82.30
        """,
    ),
    tuned={(row, split): {"algorithm.lam": lam} for row in ("margin only", "both") for split, lam in LAMBDAS.items()},
    caveats=(SPLIT_CAVEAT, *RELEASED_CODE),
)
_ONE_ROUND = {"rounds": "1", "diagnostics": "decomposition"}
_ALPHA_COLUMNS = {alpha: {"data.partition.alpha": alpha} for alpha in ("100", "10", "1", "0.1", "0.01")}
FIGURE_2 = Experiment(
    title="FedLD, Fig. 2: what distribution shift and aggregation add to the loss in one round",
    rows={
        "neither": {"algorithm.name": "fedavg"},
        "margin": {"algorithm.name": "fedld", "algorithm.principal": "False"},
        "principal directions": {"algorithm.name": "fedld", "algorithm.lam": "0.0"},
    },
    measures={
        "absolute shift": read_first(mean_quantity("decomposition", "absolute_shift")),
        "absolute aggregation": read_first(mean_quantity("decomposition", "absolute_aggregation")),
    },
    scales={
        "smoke": make_smoke_scale({"100": {"data.partition.alpha": "100", "diagnostics": "decomposition"}}, EVALUATION),
        "cpu": _on_x_rays(
            _ALPHA_COLUMNS, {**_ONE_ROUND, "num_seeds": "5"}, RETINA_REDUCTION.replace(", 30 rounds for 200", "")
        ),
        "paper": _on_retina(
            _ALPHA_COLUMNS, {**_ONE_ROUND, "data.num_clients": "5", "data.partition.name": "dirichlet"}
        ),
    },
    caveats=(
        "The figure's values are not printed.",
        "Eq. 2 as displayed breaks its own identity; the sentence below it is used.",
        "Not in the paper: lambda in the figure, here .03; how many clients, here 5.",
        *RELEASED_CODE,
    ),
    draw=plot_columns("alpha"),
)

EXPERIMENTS = {"table1": TABLE_1, "table1-covid": COVID, "table2": TABLE_2, "table3": TABLE_3, "fig2": FIGURE_2}
