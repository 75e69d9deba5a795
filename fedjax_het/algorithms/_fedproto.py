"""FedProto."""

from typing import Annotated, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import prototypes
from fedjax_het.client.objectives import cross_entropy, prototype_distance
from fedjax_het.models import with_empty_parameter, with_feature_shape
from fedjax_het.server.aggregators import mean
from fedjax_het.server.summaries import class_weighted_mean
from fedjax_het.server.weightings import WeightingName
from fedjax_het.sharing import whole_model
from fedjax_het.validation import NonNegative, validate_arguments


@validate_arguments
def fedproto(
    lam: Annotated[NonNegative, LogUniform(0.1, 10.0)] = 1.0,
    *,
    prototype_weighting: WeightingName = "uniform",
    **training: Unpack[Training],
) -> Algorithm:
    """FedProto: align personal models by shared class prototypes.

        min  CE + lam 1/(B d) sum_b |f_b - c_{y_b}|^2,   examples whose class has no prototype c_k contribute 0
        c_k <- 1/|N_k| sum_{i in N_k} c_ik,   N_k: the clients of the round that have class k, c_ik: their mean features

    Communication: down the prototypes, up class means with counts: C d numbers, independent of the size of the
    model. Client state: the full model.

    Setting: 20 clients, all in every round, 100 to 120 rounds, SGD .01, momentum .5, 1 epoch, batch 4 (CIFAR-10 32), 3
    to 5 classes per client with about 100 examples each.
    Deviations: prototypes are measured after training, in evaluation mode; the released code collects them in the last
    epoch, while the model changes. The printed mean weights clients by their counts and also divides by their number,
    so that prototypes shrink; the second division is in no code and not reproduced. All clients start from the same
    weights, not from individual ones. Incomplete batches are used, not dropped. A class that no client of the round has
    keeps its prototype. The evaluated server model is the mean of the personal models. Personal models are evaluated by
    their heads; the released code also classifies by the nearest prototype, and its accuracies are running totals over
    clients.

    Args:
        lam: The paper's λ (default 1; .1 for CIFAR-10). 0 is local training.
        prototype_weighting: Weights of the clients that have the class: "uniform" (code) or "samples".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Features are maps, or a number is out of range.

    References:
        Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022. arXiv:2105.00243;
        code yuetan031/fedproto.
    """
    local_update = sgd(**training)
    return Algorithm(
        objective=(cross_entropy(), prototype_distance(lam)),
        local_update=local_update,
        reports={"prototypes": prototypes(local_update.batch_size)},
        published={"prototypes": class_weighted_mean(prototype_weighting)},
        aggregator=mean("uniform"),
        sharing=whole_model,
        adapt=lambda model: with_feature_shape(with_empty_parameter(model)),
    )
