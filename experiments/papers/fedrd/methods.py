"""What FedRD's tables and figures compare, and the smallest scale of all of them."""

from experiments.papers.plan import Settings, smoke

METHODS = {
    "FedAvg": {"algorithm.name": "fedavg"},
    "FedProx": {"algorithm.name": "fedprox"},
    "Scaffold": {"algorithm.name": "scaffold", "algorithm.momentum": "0.0", "algorithm.weight_decay": "0.0"},
    "FedSR": {"algorithm.name": "fedsr"},
    "FedBN": {"algorithm.name": "fedbn"},
    "FedGA": {"algorithm.name": "fedga"},
    "FedIIR": {"algorithm.name": "fediir"},
    "FedRD": {"algorithm.name": "fedrd"},
}
BOTH = {name: METHODS[name] for name in ("FedAvg", "FedRD")}
ABLATION = {
    "w/o DC": {"algorithm.name": "fedrd", "algorithm.debiased": "False"},
    "w/o GGA": {"algorithm.name": "fedrd", "algorithm.guided": "False"},
    "full": {"algorithm.name": "fedrd"},
}
AVERAGE = "Avg."
WEAK = (
    "Scaffold's control variates stand for plain SGD: it has neither momentum nor weight decay here; what it had there "
    "is not told.",
    "Of the 32 averages printed in the main tables ten disagree with their own rows by more than .01.",
    "The authors subsampled classes by a script that is not published; their few-shot lists do not fit PACS as it is.",
)


def unseen_domains(*domains: str) -> dict[str, Settings]:
    """{"P": leave out photo, ...}"""
    return {domain[0].upper(): {"data.unseen": domain} for domain in domains}


SMOKE = smoke(
    {"inverted": {"data.unseen": "inverted"}},
    {
        "data.domains": "True",
        "data.partition.name": "by_domain",
        "data.num_clients": "3",
        "data.valid_fraction": "0.1",
        "model.hidden": "(16,)",
        "model.norm": "batch",
    },
    "every fourth one left out because its grey levels are inverted, a multilayer perceptron",
)
