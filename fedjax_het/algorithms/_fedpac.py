"""FedPAC."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import LearningRate, Training, refuse_only, sequential, sgd
from fedjax_het.client.measures import class_statistics, head_statistics, own_head, prototypes
from fedjax_het.client.objectives import alignment, cross_entropy
from fedjax_het.models import with_feature_shape
from fedjax_het.server.aggregators import collaborative_heads, mean
from fedjax_het.server.summaries import class_weighted_mean
from fedjax_het.server.weightings import WeightingName, WeightingOrName
from fedjax_het.sharing import HEAD, personal
from fedjax_het.validation import Count, Fraction, NonNegative, refuse_without_effect, validate_arguments


@validate_arguments
def fedpac(
    lam: Annotated[NonNegative, LogUniform(0.1, 10.0)] = 1.0,
    head_learning_rate: LearningRate = 0.1,
    head_epochs: Count = 1,
    *,
    threshold: Fraction = 1e-3,
    collaborate: bool = True,
    prototype_weighting: WeightingName = "samples",
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedPAC: shared extractor aligned by prototypes, mixtures of heads.

        head:  head_epochs of CE, extractor fixed;   body:  CE + lam 1/d |f - c_y|^2, head fixed
        extractor <- sum_i p_i extractor_i,   c_k <- sum_i n_ik c_ik / sum_i n_ik
        head_i <- sum_j a_ij head_j,   a_i = argmin a^T P_i a on the simplex

    Communication: down the extractor, c and the client's own mixture of heads; up the extractor, the head, class
    means with counts (after training), V_i and H_i (class means times shares, at the received model). Client state:
    the head.

    Setting: SGD .01 (.02 CIFAR), momentum .5, decay 5e-4, batch 50, 5 epochs, 20 clients, 200 rounds.
    The settings of local training apply to the body; the head also uses its momentum, weight_decay, batch_size and
    shuffle.
    Deviations from the code: features are measured in evaluation mode (not in the code's first round), the quadratic
    program for a_i is solved exactly (in the code, a repair of P_i can fail), a class that no client has keeps its
    prototype (an error in the code).

    Args:
        lam: The paper's λ (default 1); the term is off in round 0.
        head_learning_rate: Learning rate of the head (default .1).
        head_epochs: Epochs of the head (default 1).
        threshold: Mixture weights below it are dropped (default .001).
        collaborate: Whether heads are mixed. False keeps every head local (FedRep with prototypes).
        prototype_weighting: Weights of the clients that have the class: "samples" (code) or "uniform".
        server_learning_rate: Factor of the mean update (default 1).
        weighting: Client weights of the extractor: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: `only` is given, or a number is out of range.

    References:
        Xu, Tong and Huang, Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR
        2023; code JianXu95/FedPAC.
    """
    refuse_only("FedPAC trains the head and then the rest", training)
    head: Training = {**training, "learning_rate": head_learning_rate, "epochs": head_epochs, "only": HEAD}
    for setting in ("steps", "optimizer", "betas"):
        head.pop(setting, None)
    local_update = sequential(sgd(**head), sgd(**training, only=f"!{HEAD}"))
    batch_size = local_update.batch_size
    reports = {"prototypes": prototypes(batch_size)}
    if not collaborate:
        refuse_without_effect(fedpac, "with collaborate=False", threshold=threshold)
    else:
        reports |= {"head": own_head, "statistics": head_statistics}
    return Algorithm(
        objective=(cross_entropy(), alignment(lam)),
        local_update=local_update,
        survey={"classes": class_statistics(batch_size)},
        reports=reports,
        published={"prototypes": class_weighted_mean(prototype_weighting)},
        aggregator=collaborative_heads(mean(weighting), threshold) if collaborate else mean(weighting),
        sharing=personal(HEAD),
        adapt=with_feature_shape,
        server_optimizer=optax.sgd(server_learning_rate),
    )
