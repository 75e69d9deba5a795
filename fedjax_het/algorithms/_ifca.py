"""Several models for clusters of clients: IFCA."""

from typing import Unpack

from fedjax_het.algorithm import Algorithm, SharedModels
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import best_model
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingName
from fedjax_het.validation import Count, validate_arguments


@validate_arguments
def ifca(num_models: Count = 2, weighting: WeightingName = "samples", **training: Unpack[Training]) -> Algorithm:
    """IFCA: several models, of which each client trains the one with the lowest loss on its training examples.

        j_i = argmin_j F_i(theta_j),   theta_j <- theta_j + sum_i p_i (w_i - theta_j) over the clients with j_i = j

    Communication: all models to every client, one model back. Client state: none.

    Ties go to the model with the lowest number. The models start from different random weights: equal ones would tie
    for ever. A model that no client chose does not change. `personal/...` scores each client with the model that it
    chooses on its training examples; other scores are of the mean of the models' logits.
    Setting: 4 rotations of MNIST, 2400 clients, 10 full-batch steps, rate .1, 300 rounds.
    Differences from the authors' code: it weighs clients of MNIST and CIFAR equally (weighting="uniform") and those of
    FEMNIST by their numbers of examples. In its evaluation of MNIST clients choose on their test examples.

    Args:
        num_models: The number of models, the paper's k (default 2).
        weighting: The weights p_i among the clients of a model: "samples" (default) or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020. arXiv:2006.04088; code
        jichan3751/ifca.
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        models=SharedModels(num_models, best_model()),
    )
