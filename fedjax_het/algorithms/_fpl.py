"""FPL."""

from typing import Annotated, Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm, LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import prototypes
from fedjax_het.client.objectives import clustered_contrastive, cross_entropy, prototype_distance
from fedjax_het.models import with_feature_shape
from fedjax_het.server.aggregators import mean
from fedjax_het.server.summaries import clustered_prototypes
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, Positive, validate_arguments


@validate_arguments
def fpl(
    temperature: Annotated[Positive, LogUniform(0.01, 1.0)] = 0.02,
    *,
    over_features: Literal["mean", "sum"] = "mean",
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FPL: features drawn to clusters of the clients' class prototypes.

        min  CE + 1/B sum_b [ -log( sum_j e^{cos(f_b, P^y_j)/tau} / sum_{k, j} e^{cos(f_b, P^k_j)/tau} )
                              + 1/d |f_b - U^y|^2 ]
        P^k_j: the mean of each FINCH cluster of c_ik, client i's mean feature of class k;   U^k = mean_j P^k_j
        w <- w + eta_g sum_i p_i (w_i - w)

    Communication: down w, all clusters P and their means U; up w_i - w, and the class means c_ik with counts.
    Client state: none.

    U^k is the mean over clusters, not over clients, so that no domain counts more for having more clients. The first
    round is FedAvg. Examples whose class has no prototype count with 0 in both terms. Clusters are found anew in every
    round, of the clients that take part in it.
    Setting: 10 clients whose domains are drawn at random (Digits, 1 % of the examples; Office-Caltech, 20 %), all in
    every round, 100 rounds, 10 epochs, ResNet-10, SGD .01, momentum .9, weight decay 1e-5, batch 64.
    Deviations from the code: prototypes are measured after training, in evaluation mode; there they are collected
    during the last epoch, while the model moves. A class that no client of the round has keeps its clusters; there it
    has none. Where it stops with an error, there is a value: a class of a single client is one cluster, a batch without
    prototypes has the cross-entropy alone, a single class has no contrast. A feature of zero has cosine 0 and no
    gradient of the contrast.

    Args:
        temperature: The paper's τ, .02. The gradient of the contrast grows as 1 / (tau |f|); networks with few features
            want a larger one.
        over_features: Whether the squared distance to U is a "mean" over features (code) or their "sum".
        server_learning_rate: By which the mean of the updates is multiplied, 1.
        weighting: "samples" (code) or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Features that are maps, or a number out of range.

    References:
        Huang et al., Rethinking Federated Learning with Domain Shift: A Prototype View, CVPR 2023; code
        WenkeHuang/RethinkFL.
    """
    local_update = sgd(**training)
    return Algorithm(
        objective=(cross_entropy(), clustered_contrastive(temperature), prototype_distance(1.0, over_features)),
        local_update=local_update,
        reports={"prototypes": prototypes(local_update.batch_size)},
        published={"prototypes": clustered_prototypes()},
        aggregator=mean(weighting),
        adapt=with_feature_shape,
        server_optimizer=optax.sgd(server_learning_rate),
    )
