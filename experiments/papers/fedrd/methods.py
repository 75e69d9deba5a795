"""The methods of FedRD's tables and figures, and the smallest scale of all of them."""

from ..spec import Experiment, Settings, smoke

METHODS = {
    "FedAvg": {"algorithm.name": "fedavg"},
    "FedProx": {"algorithm.name": "fedprox", "algorithm.mu": "0.1"},
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
PAPER = {
    "data.valid_fraction": "0.1",
    "data.client_test_fraction": "0.0",
    "data.test_fraction": "0.0",
    "num_seeds": "3",
}
IMAGENET = "ImageNet weights of ResNet-18"
UNTOLD = (
    "Not told by the paper, and taken from the released code: rate .001, a tenth of it after 80 % of the rounds, "
    "momentum .9, weight decay .0005, batches of 16, 5 epochs where the table does not say, 40 rounds (its README; 100 "
    "by default), augmentation, ImageNet weights to begin with, a tenth of a client's examples (on PACS its own lists) "
    "for validation. There FedProx and Scaffold keep their rate, and images are standardised by ImageNet's moments, "
    "here by the clients'.",
    "Not told by the paper: which round is reported (here the last; the released code keeps the best on validation "
    "too); how many seeds the deviations are over, here 3; which classes of a client are few-shot, here those with "
    "less than half its mean number.",
)
BASELINES = (
    "Scaffold's control variates stand for plain SGD: it has neither momentum nor weight decay here; in the released "
    "code it has both.",
    "Not told by the paper: the baselines' own settings. FedProx's mu is .1, as in the released code; FedGA's step .2 "
    "over all rounds, by the loss; FedSR's weights .01 and .001, 20 draws; FedIIR's penalty .001 on PACS and "
    "Mini-DomainNet, .005 on VLCS, .0005 on OfficeHome, its decay .95: as their authors have them.",
)
BACKBONES = (
    "Not told by the paper: which results are of ResNet-18 and which of ResNet-50, both of which it names. "
    "What ends in -resnet50 is ResNet-50's, beside the same printed values.",
)
WEAK = (
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
        "data.client_test_fraction": "0.0",
        "model.hidden": "(16,)",
        "model.norm": "batch",
    },
    "every fourth one left out because its grey levels are inverted, a multilayer perceptron",
)


def with_resnet50(experiment: Experiment) -> Experiment:
    """The same at the paper's scale with the other network that the paper names."""
    paper = experiment.scales["paper"]
    common = {**paper.common, "model.name": "resnet50"}
    larger = paper._replace(common=common, pretrained=IMAGENET.replace("18", "50"))
    return experiment._replace(
        title=f"{experiment.title}, ResNet-50", scales={"smoke": experiment.scales["smoke"], "paper": larger}
    )
