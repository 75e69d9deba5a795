"""Optimizers on the server: FedAvgM, FedAdagrad, FedAdam and FedYogi."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform, Uniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server import optimizers
from fedjax_het.server.aggregators import mean
from fedjax_het.server.optimizers import BiasCorrection, InitialMoment
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import FractionBelowOne, NonNegative, Positive, Preset, validate_arguments, with_presets


@validate_arguments
def fedavgm(
    server_learning_rate: NonNegative = 1.0,
    server_momentum: Annotated[FractionBelowOne, Uniform(0.0, 0.99)] = 0.9,
    momentum_damping: bool = False,
    *,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedAvgM: momentum on the server.

        w_i = SGD(F_i, start at w),   D = sum_i p_i (w_i - w)
        b <- momentum b + D,   w <- w + eta b

    Communication: same as FedAvg. Client state: none. Server state: b.

    Setting (tuned by Flower's baseline for CIFAR-10): eta .316, local learning rate .0316.
    Deviation: batch statistics are simply averaged; Flower treats them like weights, and a variance may become
    negative.

    Args:
        server_learning_rate: The paper's eta (default 1).
        server_momentum: Server momentum (default .9). 0 with server_learning_rate 1 is FedAvg.
        momentum_damping: Whether to use b <- momentum b + (1 - momentum) D, as in MOON's repository.
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019.
        arXiv:1909.06335; code Flower (a third party).
    """
    optimizer = optimizers.sgd(server_learning_rate, server_momentum, momentum_damping=momentum_damping)
    return _on_server(optimizer, weighting, training)


@validate_arguments
def fedadagrad(
    server_learning_rate: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.1,
    tau: Annotated[Positive, LogUniform(1e-5, 0.1)] = 1e-3,
    v0: InitialMoment = 0.0,
    *,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedAdagrad: Adagrad on the server.

        w_i = SGD(F_i, start at w),   D = sum_i p_i (w_i - w)
        v <- v + D^2,   w <- w + eta D / (sqrt(v) + tau)

    Communication: same as FedAvg. Client state: none. Server state: v.

    Setting (tuned by Flower's baseline for CIFAR-10): eta .1, tau .01, local learning rate .0316.
    Deviation: batch statistics are simply averaged.

    Args:
        server_learning_rate: The paper's eta (default .1).
        tau: Degree of adaptivity (default 1e-3; grid 1e-5 to 1e-1).
        v0: Initial value of v (default 0, as in the experiments). "tau2" is tau^2, as in the paper's Algorithm 2.
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Reddi et al., Adaptive Federated Optimization, ICLR 2021. arXiv:2003.00295; code Flower, TensorFlow
        Federated (third parties).
    """
    optimizer = optimizers.adagrad(server_learning_rate, tau, v0)
    return _on_server(optimizer, weighting, training)


@with_presets(released={"bias_correction": "adam"})
@validate_arguments
def fedadam(
    server_learning_rate: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.01,
    b1: FractionBelowOne = 0.9,
    b2: FractionBelowOne = 0.99,
    tau: Annotated[Positive, LogUniform(1e-5, 0.1)] = 1e-3,
    *,
    v0: InitialMoment = 0.0,
    bias_correction: BiasCorrection | None = None,
    weighting: WeightingOrName = "samples",
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """FedAdam: Adam on the server.

        w_i = SGD(F_i, start at w),   D = sum_i p_i (w_i - w)
        m <- b1 m + (1 - b1) D,   v <- b2 v + (1 - b2) D^2
        w <- w + eta m / (sqrt(v) + tau)

    Communication: same as FedAvg. Client state: none. Server state: m and v.

    Setting (tuned by Flower's baseline for CIFAR-10): eta .01, tau .001, local learning rate .0316.
    Deviation: batch statistics are simply averaged. optax.adam corrects the bias of the first rounds, unlike the paper.

    Args:
        server_learning_rate: The paper's eta (default .01).
        b1: The paper's beta_1 (default .9).
        b2: The paper's beta_2 (default .99).
        tau: Degree of adaptivity (default 1e-3; grid 1e-5 to 1e-1).
        v0: Initial value of v (default 0, as in the experiments). "tau2" is tau^2, as in the paper's Algorithm 2.
        bias_correction: None (paper), "adam" (the authors' code) or "flower" (Flower, one step ahead).
        weighting: Client weights: "samples" or "uniform".
        preset: "released" corrects the bias as the authors' code does.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Reddi et al., Adaptive Federated Optimization, ICLR 2021. arXiv:2003.00295; code Flower, TensorFlow
        Federated (third parties).
    """
    optimizer = optimizers.adam(server_learning_rate, b1, b2, tau, v0=v0, bias_correction=bias_correction)
    return _on_server(optimizer, weighting, training)


@with_presets(released={"bias_correction": "adam"})
@validate_arguments
def fedyogi(
    server_learning_rate: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.01,
    b1: FractionBelowOne = 0.9,
    b2: FractionBelowOne = 0.99,
    tau: Annotated[Positive, LogUniform(1e-5, 0.1)] = 1e-3,
    *,
    v0: InitialMoment = 0.0,
    bias_correction: BiasCorrection | None = None,
    weighting: WeightingOrName = "samples",
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """FedYogi: Yogi on the server.

        w_i = SGD(F_i, start at w),   D = sum_i p_i (w_i - w)
        m <- b1 m + (1 - b1) D,   v <- v - (1 - b2) D^2 sign(v - D^2)
        w <- w + eta m / (sqrt(v) + tau)

    Communication: same as FedAvg. Client state: none. Server state: m and v.

    Setting (tuned by Flower's baseline for CIFAR-10): eta .01, tau .001, local learning rate .0316.
    Deviation: batch statistics are simply averaged. optax.yogi corrects the bias and starts at v = 1e-6; the authors'
    Yogi class starts at 1 by default.

    Args:
        server_learning_rate: The paper's eta (default .01).
        b1: The paper's beta_1 (default .9).
        b2: The paper's beta_2 (default .99).
        tau: Degree of adaptivity (default 1e-3; grid 1e-5 to 1e-1).
        v0: Initial value of v (default 0, as in the experiments). "tau2" is tau^2, as in the paper's Algorithm 2.
        bias_correction: None (paper), "adam" (the authors' code) or "flower" (one step ahead; Flower does so for Adam
            only).
        weighting: Client weights: "samples" or "uniform".
        preset: "released" corrects the bias as the authors' code does.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Reddi et al., Adaptive Federated Optimization, ICLR 2021. arXiv:2003.00295; code Flower, TensorFlow
        Federated (third parties).
    """
    optimizer = optimizers.yogi(server_learning_rate, b1, b2, tau, v0=v0, bias_correction=bias_correction)
    return _on_server(optimizer, weighting, training)


def _on_server(optimizer: optax.GradientTransformation, weighting: WeightingOrName, training: Training) -> Algorithm:
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optimizer,
    )
