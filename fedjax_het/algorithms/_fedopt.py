"""Server optimizers as algorithms: FedAvgM, FedAdagrad, FedAdam and FedYogi."""

from typing import Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server import optimizers
from fedjax_het.server.aggregators import mean
from fedjax_het.validation import FractionBelowOne, NonNegative, Positive, validate_arguments


@validate_arguments
def fedavgm(
    server_learning_rate: NonNegative = 1.0,
    server_momentum: FractionBelowOne = 0.9,
    momentum_damping: bool = False,
    *,
    weighting: str = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """The recipe at the top of this file. training: local training's settings, see `local_updates.sgd`."""
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optimizers.fedavgm(server_learning_rate, server_momentum, momentum_damping=momentum_damping),
    )


@validate_arguments
def fedadagrad(
    server_learning_rate: NonNegative = 0.1,
    tau: Positive = 1e-3,
    v0: str | NonNegative = 0.0,
    *,
    weighting: str = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """The recipe at the top of this file. training: local training's settings, see `local_updates.sgd`."""
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optimizers.fedadagrad(server_learning_rate, tau, v0),
    )


@validate_arguments
def fedadam(
    server_learning_rate: NonNegative = 0.01,
    b1: FractionBelowOne = 0.9,
    b2: FractionBelowOne = 0.99,
    tau: Positive = 1e-3,
    *,
    v0: str | NonNegative = 0.0,
    bias_correction: str | None = None,
    weighting: str = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """The recipe at the top of this file. training: local training's settings, see `local_updates.sgd`."""
    optimizer = optimizers.fedadam(server_learning_rate, b1, b2, tau, v0=v0, bias_correction=bias_correction)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optimizer,
    )


@validate_arguments
def fedyogi(
    server_learning_rate: NonNegative = 0.01,
    b1: FractionBelowOne = 0.9,
    b2: FractionBelowOne = 0.99,
    tau: Positive = 1e-3,
    *,
    v0: str | NonNegative = 0.0,
    bias_correction: str | None = None,
    weighting: str = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """The recipe at the top of this file. training: local training's settings, see `local_updates.sgd`."""
    optimizer = optimizers.fedyogi(server_learning_rate, b1, b2, tau, v0=v0, bias_correction=bias_correction)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optimizer,
    )
