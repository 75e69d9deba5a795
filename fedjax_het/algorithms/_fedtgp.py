"""FedTGP."""

from typing import Annotated, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import prototypes
from fedjax_het.client.objectives import cross_entropy, prototype_distance
from fedjax_het.models import with_empty_parameter, with_feature_shape
from fedjax_het.server.aggregators import mean
from fedjax_het.server.prototypes import trained_prototypes
from fedjax_het.sharing import whole_model
from fedjax_het.validation import Count, NonNegative, validate_arguments


@validate_arguments
def fedtgp(
    lam: Annotated[NonNegative, LogUniform(0.1, 100.0)] = 10.0,
    margin_threshold: NonNegative = 100.0,
    server_epochs: Count = 100,
    *,
    server_learning_rate: NonNegative | None = None,
    **training: Unpack[Training],
) -> Algorithm:
    """FedTGP: align personal models by prototypes that the server trains.

        clients:  min  CE + lam 1/(B d) sum_b |f_b - g_{y_b}|^2
        server:   g_c = V relu(W e_c + a) + b,   min  CE of -(|p_b - g_c| + margin 1[c = y_b]) over the clients' class
                  means p_b;   margin = min(largest distance of a mean prototype to its nearest, margin_threshold)

    Communication: down the g_c, up class means with counts: C d numbers, independent of the size of the model.
    Client state: the full model. The server keeps e, W, V, a, b.

    The evaluated server model is the mean of the personal models.
    Setting: CIFAR-10, 20 clients, all in every round, SGD .01, batch 10, 1 local epoch, 512 features.
    Differences from the authors' code: personal models are evaluated by their heads; the code predicts the nearest
    prototype, also of classes that nobody has, which have one too. A distance that underflows has gradient 0. All
    clients start from the same weights.

    Args:
        lam: The paper's λ (default 10). 0 is local training.
        margin_threshold: The paper's τ (default 100), the largest margin.
        server_epochs: The paper's S (default 100), passes over the prototypes of a round.
        server_learning_rate: The learning rate of the server's SGD. None: that of the clients.
        training: Settings of local training, see `local_updates.sgd`; the server's batches have the same size.

    Raises:
        InputError: Features are maps, or a number is out of range.

    References:
        Zhang et al., FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for Data
        and Model Heterogeneity in Federated Learning, AAAI 2024. arXiv:2401.03230; code TsingZ0/FedTGP.
    """
    local_update, rate = sgd(**training), server_learning_rate
    rate = training.get("learning_rate", 0.1) if rate is None else rate
    summary = trained_prototypes(rate, server_epochs, margin_threshold, local_update.batch_size)
    return Algorithm(
        objective=(cross_entropy(), prototype_distance(lam)),
        local_update=local_update,
        reports={"prototypes": prototypes(local_update.batch_size)},
        published={"prototypes": summary},
        aggregator=mean("uniform"),
        sharing=whole_model,
        adapt=lambda model: with_feature_shape(with_empty_parameter(model)),
    )
