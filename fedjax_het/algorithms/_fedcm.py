"""FedCM and MoFedSAM."""

from typing import Annotated, Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm, GradientRule
from fedjax_het.annotations import LogUniform
from fedjax_het.client.gradients import momentum_gradient
from fedjax_het.client.local_updates import LearningRate, TrainingWithoutRate, sgd
from fedjax_het.client.measures import effective_learning_rate
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.sharpness import sharpness_aware
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import mean
from fedjax_het.server.summaries import mean_direction
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, Positive, PositiveFraction, validate_arguments


@validate_arguments
def fedcm(
    learning_rate: LearningRate = 0.1,
    alpha: Annotated[PositiveFraction, LogUniform(0.01, 1.0)] = 0.1,
    *,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "uniform",
    normalisation: Literal["client", "cohort"] = "client",
    clip: Positive | None = None,
    **training: Unpack[TrainingWithoutRate],
) -> Algorithm:
    """FedCM: mix local gradients with the server's momentum.

        y <- y - lr (alpha g(y) + (1 - alpha) Delta),                 K_i steps from y = w
        w <- w + eta_g 1/|S| sum_S (y_i - w),   Delta <- 1/|S| sum_S (w - y_i) / (K_i lr)

    Communication: down w and Delta, twice FedAvg's; up y_i - w and the number K_i lr. Client state: none, so the
    method suits small cohorts drawn from large populations.

    Setting: SGD .1, decay 1e-3, batch 50, 5 epochs, 10 of 100 clients.
    Weight decay is added in full, outside the mixture. Local momentum raises an error: Delta would no longer be a mean
    gradient. No code by the authors was found; a third-party code (FL-Simulator) agrees with these equations.

    Args:
        learning_rate: Learning rate lr of the local steps, by which Delta is divided (default .1).
        alpha: The paper's α in (0, 1] (default .1). 1 is FedAvg.
        server_learning_rate: Server learning rate eta_g (default 1). The paper's rate is this one divided by K lr.
        weighting: Client weights: "uniform" or "samples".
        normalisation: "client" divides each update by its own K_i lr, "cohort" the mean update by the mean K_i lr.
        clip: Maximum norm of the mixed direction (10 in FL-Simulator). None: no clipping (paper).
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Momentum or another optimizer is given, or a number is out of range.

    References:
        Xu et al., FedCM: Federated Learning with Client-level Momentum, 2021. arXiv:2106.10874; code
        woodenchild95/FL-Simulator (a third party).
    """
    rule = momentum_gradient(alpha, clip)
    return _with_rule("FedCM", rule, learning_rate, server_learning_rate, weighting, normalisation, training)


@validate_arguments
def mofedsam(
    learning_rate: LearningRate = 0.1,
    alpha: Annotated[PositiveFraction, LogUniform(0.01, 1.0)] = 0.1,
    rho: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.1,
    *,
    epsilon: NonNegative = 1e-12,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "uniform",
    normalisation: Literal["client", "cohort"] = "client",
    clip: Positive | None = None,
    **training: Unpack[TrainingWithoutRate],
) -> Algorithm:
    """MoFedSAM: FedSAM's gradient mixed with the server's momentum as in FedCM.

        e = rho g(y) / (||g(y)|| + epsilon),   y <- y - lr (alpha g(y + e) + (1 - alpha) Delta),   K_i steps from y = w
        w <- w + eta_g 1/|S| sum_S (y_i - w),   Delta <- 1/|S| sum_S (w - y_i) / (K_i lr)

    Communication: down w and Delta, twice FedAvg's; up y_i - w and the number K_i lr. Client state: none. Cost: two
    gradients per step.

    g is the gradient of the task loss alone, and Delta does not enter e. Delta is zero in round 0, whose steps are
    therefore FedSAM's with learning rate alpha lr. alpha = 1 is FedSAM with uniform weights, rho = 0 is FedCM.
    Setting (FL-Simulator): rho .1, alpha .05 to .1, SGD .1 times .998 per round, decay 1e-3, batch 50, 5 epochs, 10 of
    100 clients, 1,000 rounds, clip 10.
    Weight decay is added in full, outside the mixture. Local momentum raises an error: Delta would no longer be a mean
    gradient. No code by the authors was found; a third-party code (FL-Simulator) agrees with these equations, but
    divides all updates by the number of steps of client 0. MediaBrain-SJTU/FedLESAM omits alpha before g, which is a
    different method.

    Args:
        learning_rate: Learning rate lr of the local steps. Delta is divided by the rate of the round that computed it.
        alpha: The paper's β in (0, 1] (default .1). 1 is FedSAM.
        rho: Perturbation radius, the paper's ρ (default .1). 0 is FedCM.
        epsilon: Constant added to the norm; 1e-7 in FL-Simulator.
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "uniform" or "samples".
        normalisation: "client" divides each update by its own K_i lr, "cohort" the mean update by the mean K_i lr.
        clip: Maximum norm of the mixed direction (10 in FL-Simulator). None: no clipping (paper).
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Momentum or another optimizer is given, or a number is out of range.

    References:
        Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022. arXiv:2206.02618; code
        woodenchild95/FL-Simulator (a third party).
    """
    ascent = sharpness_aware(rho, epsilon=epsilon, only=training.get("only"))
    rule = momentum_gradient(alpha, clip, ascent)
    return _with_rule("MoFedSAM", rule, learning_rate, server_learning_rate, weighting, normalisation, training)


def _with_rule(
    name: str,
    rule: GradientRule,
    learning_rate: float,
    server_learning_rate: float,
    weighting: WeightingOrName,
    normalisation: Literal["client", "cohort"],
    training: TrainingWithoutRate,
) -> Algorithm:
    for setting in ("momentum", "optimizer"):
        if training.get(setting):
            raise InputError(f"{setting}: {name}'s server momentum needs plain local SGD. Leave {setting} out.")
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(learning_rate, **training, gradient=rule),
        reports={"momentum": effective_learning_rate(learning_rate, training.get("learning_rate_schedule"))},
        published={"momentum": mean_direction(weighting, normalisation)},
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
