"""What FedLD's tables and figure compare, and on what."""

from experiments.papers.plan import Scale, smoke

METHODS = {
    "FedAvg": {"algorithm.name": "fedavg"},
    "FedProx": {"algorithm.name": "fedprox"},
    "FedBN": {"algorithm.name": "fedbn"},
    "FedPAC": {"algorithm.name": "fedpac"},
    "FedGH": {"algorithm.name": "fedgh"},
    "FedLD": {"algorithm.name": "fedld"},
}
PARTS = {
    "neither": {"algorithm.name": "fedavg"},
    "principal only": {"algorithm.name": "fedld", "algorithm.lam": "0.0"},
    "margin only": {"algorithm.name": "fedld", "algorithm.principal": "False"},
    "both": {"algorithm.name": "fedld"},
}
ALPHAS = ("100", "10", "1", "0.1", "0.01")
NETWORK = {"model.name": "resnet50", "data.size": "384"}
JUDGED = {"personal_on_test": "True"}
RETINA = {**NETWORK, **JUDGED, "data.path": "{retina}"}
X_RAY_DATA = {"cxr": "the X-rays' .npz file"}
X_RAYS = {
    **JUDGED,
    "data.name": "arrays",
    "data.path": "{cxr}",
    "data.size": "48",
    "data.partition.name": "dirichlet",
    "data.num_clients": "5",
    "rounds": "30",
    "num_seeds": "3",
    "evaluate_every": "10",
}
FOR_RETINA = (
    "chest X-rays of four sources (48 x 48, 1,367 images, three classes) for Retina, a small convolutional network "
    "that starts afresh for a ResNet-50 from ImageNet, 30 rounds for 200, rate .02 for .01, batches of 32 for 50"
)
SPLITS = "The splits' alpha is printed as 100, .1, .5; split 2 is called moderate, so .1 is taken for a misprint of 1."


def splits() -> dict[str, Scale]:
    """Retina's three, and Dirichlet divisions of X-rays as uneven."""
    paper = {f"S{i}": {"data.split": f"5_clients/split_{i}"} for i in (1, 2, 3)}
    alphas = zip(paper, ("100", "1", "0.5"), strict=True)
    cpu = {name: {"data.partition.alpha": alpha} for name, alpha in alphas}
    return {
        "smoke": smoke({"S1": {"data.partition.alpha": "100"}}, JUDGED),
        "cpu": Scale("chest_xray/fedavg.py", X_RAYS, cpu, FOR_RETINA, X_RAY_DATA),
        "paper": Scale("retina/fedavg.py", {**RETINA, "num_seeds": "3"}, paper, "", {"retina": "the folder Retina"}),
    }


LAMBDAS = {"S1": "0.1", "S2": "0.03", "S3": "0.03"}
