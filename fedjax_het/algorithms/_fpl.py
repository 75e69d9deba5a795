"""FPL."""

from typing import Annotated, Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
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
    """FPL: align features with clusters of the clients' class prototypes.

        min  CE + 1/B sum_b [ -log( sum_j e^{cos(f_b, P^y_j)/tau} / sum_{k, j} e^{cos(f_b, P^k_j)/tau} )
                              + 1/d |f_b - U^y|^2 ]
        P^k_j: the mean of each FINCH cluster of c_ik, client i's mean feature of class k;   U^k = mean_j P^k_j
        w <- w + eta_g sum_i p_i (w_i - w)

    Communication: down w, all clusters P and their means U; up w_i - w, and the class means c_ik with counts.
    Client state: none.

    U^k is the mean over clusters, not over clients, so that domains with more clients do not get more weight. The first
    round is FedAvg. Examples whose class has no prototype contribute 0 to both terms. Clusters are recomputed in every
    round from its participants.
    Setting: 10 clients whose domains are drawn at random (Digits, 1 % of the examples; Office-Caltech, 20 %), all in
    every round, 100 rounds, 10 epochs, ResNet-10, SGD .01, momentum .9, weight decay 1e-5, batch 64.
    Deviations from the code: prototypes are measured after training, in evaluation mode, while the code collects them
    during the last epoch, as the model changes. A class that no client of the round has keeps its clusters; in the
    code it has none. Where the code fails with an error, the result is defined: a class of a single client is one
    cluster, a batch without prototypes has only the cross-entropy, and a single class has no contrast. A zero feature
    has cosine 0 and no gradient of the contrast.

    Args:
        temperature: The paper's τ (default .02). The gradient of the contrast grows as 1 / (tau |f|); networks with few
            features need a larger value.
        over_features: Reduction of the squared distance to U over features: "mean" (code) or "sum".
        server_learning_rate: Factor of the mean update (default 1).
        weighting: Client weights: "samples" (code) or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Features are maps, or a number is out of range.

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
