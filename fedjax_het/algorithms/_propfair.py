"""PropFair."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import Uniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.proportional import Level, proportional_gradient
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, Positive, Preset, validate_arguments, with_presets


@with_presets(released={"continuous": False})
@validate_arguments
def propfair(
    base: Annotated[Positive, Uniform(2.0, 5.0)] = 2.0,
    epsilon: Positive = 0.2,
    *,
    level: Level = "batch",
    continuous: bool = True,
    weighting: WeightingOrName = "samples",
    server_learning_rate: NonNegative = 1.0,
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """PropFair: maximize the product of the clients' utilities.

        max  sum_i p_i log(M - F_i)
        local steps   w_i <- w_i - lr g / max(M - l, epsilon),   l: the loss of the batch, g its gradient
        w <- sum_i p_i w_i

    The factor is the slope of -log(1 - l / M), continued linearly where M - l < epsilon.

    Communication: same as FedAvg. Client state: none. For a large M this is FedAvg with learning rate lr / M.

    Setting: 10 clients, ResNet-18, M 2 to 5, epsilon .2, batch 64, 100 to 200 rounds.
    Deviations: the paper's l is the loss of the client, the code's that of the batch (default); level="client" computes
    it on all training examples before every step. Beyond M - l < epsilon the code takes the smaller factor 1/M, so
    that clients with large losses lose weight: preset "released". Its option "huber" has the factor 1/epsilon, the
    default here.

    Args:
        base: The paper's M (2 to 5). It should exceed the loss of an untrained model, log of the number of classes.
        epsilon: Smallest value of M - l.
        level: "batch" (code) or "client" (paper).
        continuous: False has the factor 1/M beyond the threshold, as in the released code.
        weighting: Client weights: "samples" (the paper's p_i) or "uniform".
        server_learning_rate: Factor of the mean update (default 1).
        preset: "released" sets the options of the public code.
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: A number is out of range.

    References:
        Zhang, Malekmohammadi, Chen and Yu, Proportional Fairness in Federated Learning, TMLR 2023. arXiv:2202.01666;
        code huawei-noah/Federated-Learning.
    """
    gradient = proportional_gradient(base, epsilon, level=level, is_continuous=continuous)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training, gradient=gradient),
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
