"""Tables 1 and 3: all methods."""

from ..measures import on_test
from ..spec import Experiment, Scale, smoke
from .setting import (
    BASELINES,
    FOR_RETINA,
    IMAGENET,
    LAMBDAS,
    METHODS,
    PAPER,
    RELEASED,
    RETINA,
    RETINA_DATA,
    SMALL,
    SPLITS,
    X_RAY_DATA,
    X_RAYS,
    splits,
)

TABLE_1 = Experiment(
    title="FedLD, Table 1: accuracy on Retina's common test set, %",
    rows=METHODS,
    measures={"accuracy": on_test()},
    scales=splits(),
    printed={
        "accuracy": {
            "FedAvg": (83.63, 82.26, 81.13),
            "FedProx": (84.17, 83.53, 81.20),
            "FedBN": (83.91, 75.91, 65.25),
            "FedPAC": (78.01, 71.64, 52.81),
            "FedGH": (83.90, 83.33, 81.56),
            "FedLD": (85.20, 83.83, 82.30),
        }
    },
    tuned={("FedLD", split): {"algorithm.lam": lam} for split, lam in LAMBDAS.items()},
    doubts=(
        SPLITS,
        'The text says that the lead over FedGH grows "from .04 to 2.20"; the table gives 1.30, .50 and .74.',
        *BASELINES,
        *RELEASED,
    ),
)
COVID = Experiment(
    title="FedLD, Table 1: accuracy on COVID-FL's common test set, %",
    rows=METHODS,
    measures={"accuracy": on_test()},
    scales={
        "smoke": smoke({"COVID-FL": {"data.partition.alpha": "0.5"}}, SMALL),
        "cpu": Scale(
            "chest_xray/fedavg.py",
            X_RAYS | {"data.partition.name": "by_domain", "data.num_clients": "4"},
            {"COVID-FL": {}},
            FOR_RETINA.replace("for Retina", "(a source a client) for COVID-FL's twelve sites"),
            X_RAY_DATA,
        ),
        "paper": Scale(
            "covid_fl/fedavg.py",
            {**PAPER, "data.path": "{covid}"},
            {"COVID-FL": {}},
            "",
            {"covid": "the folder COVID-FL"},
            IMAGENET,
        ),
    },
    printed={
        "accuracy": {
            "FedAvg": (79.86,),
            "FedProx": (81.88,),
            "FedBN": (56.34,),
            "FedPAC": (81.63,),
            "FedGH": (82.26,),
            "FedLD": (83.87,),
        }
    },
    tuned={("FedLD", "COVID-FL"): {"algorithm.lam": "0.01"}},
    doubts=(*BASELINES, *RELEASED),
)
TABLE_3 = Experiment(
    title="FedLD, Table 3: fifty clients, five of them a round, accuracy on Retina's common test set, %",
    rows=METHODS,
    measures={"accuracy": on_test()},
    scales={
        "smoke": smoke({"Retina": {"data.partition.alpha": "0.5"}}, SMALL),
        "cpu": Scale(
            "chest_xray/fedavg.py",
            X_RAYS | {"data.num_clients": "50", "cohort_size": "5", "data.partition.alpha": "0.5"},
            {"Retina": {}},
            FOR_RETINA,
            X_RAY_DATA,
        ),
        "paper": Scale(
            "retina/fedavg.py",
            RETINA
            | {"data.num_clients": "50", "cohort_size": "5"}
            | {"data.partition.name": "dirichlet", "data.partition.alpha": "0.5"},
            {"Retina": {}},
            "",
            RETINA_DATA,
            IMAGENET,
        ),
    },
    printed={
        "accuracy": {
            "FedAvg": (67.43,),
            "FedProx": (69.87,),
            "FedBN": (68.40,),
            "FedPAC": (66.59,),
            "FedGH": (70.33,),
            "FedLD": (71.30,),
        }
    },
    tuned={("FedLD", "Retina"): {"algorithm.lam": "0.03"}},
    doubts=(
        "The released code stops with an IndexError where fewer clients than all take part.",
        "Not told by the paper: FedLD's lambda with fifty clients; here .03, as for the split of the same alpha.",
        *BASELINES,
        *RELEASED,
    ),
)
