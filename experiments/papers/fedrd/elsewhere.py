"""Tables 1 and 3: Mini-DomainNet, OfficeHome and VLCS."""

from experiments.papers.fedrd.methods import AVERAGE, METHODS, SMOKE, WEAK, unseen_domains
from experiments.papers.measures import unseen
from experiments.papers.plan import Experiment, Printed, Scale, Settings


def _elsewhere(
    title: str, source: str, clients: int, columns: dict[str, Settings], printed: Printed, doubts: tuple[str, ...] = ()
) -> Experiment:
    """On data that have to be fetched; the networks and settings are those of PACS."""
    common = {"data.name": source, "data.path": f"{{{source}}}", "data.num_clients": str(clients), "num_seeds": "3"}
    return Experiment(
        title=title,
        rows=METHODS,
        measures={"accuracy": unseen()},
        scales={
            "smoke": SMOKE,
            "paper": Scale("pacs/fedrd.py", common, columns, "", {source: f"the data of '{source}'"}),
        },
        printed={"accuracy": printed},
        average=AVERAGE,
        doubts=(*doubts, *WEAK[:2]),
    )


ELSEWHERE = {
    "table1-domainnet": _elsewhere(
        "FedRD, Table 1: Mini-DomainNet, accuracy on the domain left out, %",
        "mini_domainnet",
        5,
        unseen_domains("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
        {
            "FedAvg": (50.77, 23.46, 45.85, 41.32, 49.90, 47.74, 43.17),
            "FedProx": (52.22, 25.63, 46.47, 42.21, 51.89, 49.01, 44.58),
            "Scaffold": (52.13, 26.25, 45.80, 41.76, 50.36, 48.42, 44.12),
            "FedSR": (56.83, 26.03, 48.15, 45.32, 52.19, 51.44, 46.78),
            "FedBN": (54.65, 26.44, 48.36, 44.83, 51.75, 50.31, 46.22),
            "FedGA": (56.31, 26.95, 49.07, 46.15, 54.35, 52.84, 47.01),
            "FedIIR": (55.62, 27.54, 48.23, 46.38, 52.40, 50.67, 45.91),
            "FedRD": (55.74, 28.24, 48.52, 46.66, 54.37, 52.41, 47.66),
        },
    ),
    "table1-officehome": _elsewhere(
        "FedRD, Table 1: OfficeHome, accuracy on the domain left out, %",
        "office_home",
        3,
        unseen_domains("art", "clipart", "product", "real_world"),
        {
            "FedAvg": (50.14, 40.29, 37.25, 49.85, 44.38),
            "FedProx": (50.39, 42.33, 38.97, 50.86, 45.64),
            "Scaffold": (55.94, 40.97, 41.19, 55.02, 48.28),
            "FedSR": (56.35, 45.10, 42.86, 56.94, 50.15),
            "FedBN": (57.20, 46.87, 43.15, 57.45, 51.17),
            "FedGA": (57.20, 46.87, 43.15, 57.45, 51.17),
            "FedIIR": (57.35, 46.25, 44.00, 58.22, 51.46),
            "FedRD": (58.38, 47.14, 44.32, 58.17, 52.01),
        },
        ("FedGA's row is FedBN's, digit for digit.",),
    ),
    "table3": _elsewhere(
        "FedRD, Table 3: VLCS, accuracy on the domain left out, %",
        "vlcs",
        3,
        {
            "V": {"data.unseen": "pascal"},
            "L": {"data.unseen": "labelme"},
            "C": {"data.unseen": "caltech"},
            "S": {"data.unseen": "sun"},
        },
        {
            "FedAvg": (76.71, 48.03, 56.70, 52.97, 58.60),
            "FedProx": (80.51, 49.99, 57.12, 54.49, 60.52),
            "Scaffold": (77.26, 50.39, 56.35, 55.97, 59.99),
            "FedSR": (82.31, 56.56, 63.09, 59.33, 65.35),
            "FedBN": (82.94, 49.54, 62.25, 59.45, 63.55),
            "FedGA": (83.14, 50.34, 59.86, 64.41, 64.44),
            "FedIIR": (83.25, 52.83, 62.38, 60.34, 64.95),
            "FedRD": (85.37, 56.61, 63.24, 60.30, 66.38),
        },
    ),
}
