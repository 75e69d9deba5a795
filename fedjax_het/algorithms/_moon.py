"""MOON."""

from dataclasses import replace
from typing import Annotated, Literal, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.memories import previous_models
from fedjax_het.client.objectives import contrastive, cross_entropy
from fedjax_het.models import projected
from fedjax_het.server import optimizers
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Count, FractionBelowOne, NonNegative, Positive, may_be_nonzero, validate_arguments


@validate_arguments
def moon(
    mu: Annotated[NonNegative, LogUniform(0.1, 10.0)] = 1.0,
    temperature: Positive = 0.5,
    buffer: Count = 1,
    *,
    first: Literal["none", "init"] = "none",
    projection: Count | None = None,
    server_learning_rate: NonNegative = 1.0,
    server_momentum: FractionBelowOne = 0.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """MOON: contrast features with the global model's and with older ones.

        min  CE + mu 1/B sum_b -log( e^{cos(z, z_g)/tau} / (e^{cos(z, z_g)/tau} + sum_p e^{cos(z, z_p)/tau}) )
        z, z_g, z_p: features of the model in training, the received model, and the client's earlier models
        then average as FedAvg does

    Communication: same as FedAvg. Client state: its last `buffer` trained models.

    Setting: SGD .01, momentum .9, decay 1e-5, batch 64, 10 epochs, 100 rounds, 10 clients by Dirichlet .5.
    Deviations from the code: a client that has not trained before has no contrastive term (in the code, its own random
    network is the negative), a last batch of one example is allowed, and server momentum does not apply to batch
    statistics.

    Args:
        mu: The paper's μ (default 1, as in the code; the paper tunes .001 to 10, 5 for CIFAR-10).
        temperature: Temperature τ of the cosines (default .5).
        buffer: Number of earlier models to contrast with (default 1).
        first: Before the client's first round, "none" omits the term and "init" contrasts with the initial model.
        projection: Width of a projection head whose output is z and the classifier's input (the paper's 256). None: the
            model's own features. The paper applies it to every method: `replace(fedavg(),
            adapt=models.projected(256))`.
        server_learning_rate: Factor of the mean update (default 1).
        server_momentum: Momentum m in the authors' damped form, v <- m v + (1 - m)(w - mean), w <- w - v. 0: none.
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021. arXiv:2103.16257; code QinbinLi/MOON.
    """
    is_contrasted = may_be_nonzero(mu)
    algorithm = Algorithm(
        objective=(cross_entropy(), contrastive(mu, temperature)) if is_contrasted else (cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optimizers.sgd(server_learning_rate, server_momentum, momentum_damping=True),
        memory={"previous": previous_models(buffer, first)} if is_contrasted else {},
    )
    return algorithm if projection is None else replace(algorithm, adapt=projected(projection))
