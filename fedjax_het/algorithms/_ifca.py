"""Several models for clusters of clients: IFCA, FeSEM and CFL."""

from typing import Literal, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import assigned_model, best_model, nearest_model
from fedjax_het.client.memories import last_model
from fedjax_het.client.objectives import cross_entropy, proximal
from fedjax_het.server.aggregators import mean
from fedjax_het.server.clustering import Linkage
from fedjax_het.server.model_groups import continue_groups, divide_groups, measure_groups, shares_of_groups
from fedjax_het.server.weightings import WeightingName, mean_over_cohort
from fedjax_het.shared_models import SharedModels
from fedjax_het.validation import Count, CountOrZero, NonNegative, Positive, refuse_without_effect, validate_arguments


@validate_arguments
def ifca(
    num_models: Count = 2,
    weighting: WeightingName = "samples",
    averaging: Literal["model", "gradient"] = "model",
    **training: Unpack[Training],
) -> Algorithm:
    """IFCA: several models; each client trains the one with its lowest loss.

        j_i = argmin_j F_i(theta_j),   F_i the loss on the training examples of client i,
        theta_j <- theta_j + sum_i p_i (w_i - theta_j) over the clients with j_i = j

    Communication: all models to every client, one model back. Client state: none.

    Ties go to the model with the lowest number. The models start from different random weights: equal ones would tie
    for ever. A model that no client chose does not change. `personal/...` scores each client with the model that it
    chooses on its training examples, and `per_client.csv` names it; other scores are of the mean of the models' logits.
    num_models = 1 is FedAvg.
    Setting: 4 rotations of MNIST, 2400 clients, 10 full-batch steps, rate .1, 300 rounds.
    Differences from the authors' code: it weighs clients of MNIST and CIFAR equally (weighting="uniform") and those of
    FEMNIST by their numbers of examples. In its evaluation of MNIST clients choose on their test examples.

    Args:
        num_models: The number of models, the paper's k (default 2).
        weighting: The weights p_i among the clients of a model: "samples" (default) or "uniform".
        averaging: "model" (default), as above; "gradient" divides the sum of the updates of a model by the number of
            clients in the whole cohort, which is the paper's gradient averaging if clients take one step.
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: averaging="gradient" with a weighting, which it does not use.

    References:
        Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020. arXiv:2006.04088; code
        jichan3751/ifca.
    """
    if averaging == "gradient":
        refuse_without_effect(ifca, "with averaging='gradient'", weighting=weighting)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(mean_over_cohort if averaging == "gradient" else weighting),
        models=SharedModels(num_models, best_model()),
    )


@validate_arguments
def fesem(
    num_models: Count = 2,
    lam: NonNegative = 0.0,
    weighting: WeightingName = "uniform",
    **training: Unpack[Training],
) -> Algorithm:
    """FeSEM: several models; each client trains the nearest to its last one.

        j_i = argmin_j ||theta_j - v_i||,   F_i(w) + lam/2 ||w - theta_{j_i}||^2 is minimized from theta_{j_i},
        theta_j <- theta_j + sum_i p_i (v_i - theta_j) over the clients with j_i = j

    Communication: all models to every client, one model back. Client state: its last trained model.

    A client that has not trained yet has no v_i; it takes the model with the lowest loss on its training examples. Ties
    go to the lowest number. Scores and equal starts: as in `ifca`. num_models = 1 with lam = 0 is FedAvg.
    Differences from published code: there is none by the authors. FlexCFL's uses the update of the first member of a
    group alone, and its clients train a model of their own first.

    Args:
        num_models: The number of models, the paper's K (default 2).
        lam: The paper's λ (default 0).
        weighting: The weights p_i among the clients of a model: "uniform" (default) or "samples".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Long et al., Multi-center Federated Learning: Clients Clustering for Better Personalization, 2020.
        arXiv:2005.01026
    """
    return Algorithm(
        objective=(cross_entropy(), proximal(lam)),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        memory={"own": last_model()},
        models=SharedModels(num_models, nearest_model("own", best_model())),
    )


@validate_arguments
def cfl(
    max_models: Count = 8,
    eps_1: Positive = 0.4,
    eps_2: Positive = 1.6,
    first_round: CountOrZero = 20,
    min_size: Count = 2,
    linkage: Linkage = "single",
    **training: Unpack[Training],
) -> Algorithm:
    """CFL: groups of clients with contradicting updates are divided in two.

        a group is divided if |mean_i u_i| < eps_1 and max_i |u_i| > eps_2,
        such that the largest cosine between updates of different parts is the smallest;
        theta_g <- theta_g + mean_i u_i over the clients of group g

    Communication: as FedAvg, and the group of every client, 4 bytes each. Client state: none. All clients take part in
    every round.

    All clients start in one group, and groups are never joined. Updates of a round in which a group is divided are
    averaged in its parts. `personal/...` scores each client with its group's model; other scores are of the models'
    logits weighted by the sizes of the groups. Evaluations show the two norms as `models/mean_norm` and
    `models/max_norm`, for the group in which their ratio is the smallest.
    Setting: EMNIST, 10 clients, SGD .1 times .99 per round, momentum .9, batch 128, eps .4 and 1.6, 80 rounds. The
    thresholds depend on the network, the rate and the number of steps.
    Differences from the authors' code: it divides by complete linkage (linkage="complete"), and from the second
    division of a group on it takes positions within a group for numbers of clients.

    Args:
        max_models: The maximum number of groups (default 8); a group is not divided if there are as many.
        eps_1: The paper's ε1 (default .4); see "Thresholds of CFL" on the page "Clusters" of the documentation.
        eps_2: The paper's ε2 (default 1.6).
        first_round: The number of rounds in which no group is divided (default 20).
        min_size: Groups of at most this size are not divided (default 2).
        linkage: "single" (default), the best division, as in the paper; or "complete", as in the code.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Sattler, Müller and Samek, Clustered Federated Learning, TNNLS 2020. arXiv:1910.01991; code
        felisat/clustered-federated-learning.
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean("uniform"),
        reports={"groups": lambda problem, view: ()},
        published={"groups": divide_groups(max_models, eps_1, eps_2, first_round, min_size, linkage)},
        models=SharedModels(
            max_models,
            assigned_model("groups"),
            continue_groups("groups"),
            are_all_sent=False,
            weigh=shares_of_groups("groups", max_models),
            measure=measure_groups("groups"),
        ),
    )
