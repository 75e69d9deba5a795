"""FedCM."""

from typing import Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.gradients import momentum_gradient
from fedjax_het.client.local_updates import TrainingWithoutRate, sgd
from fedjax_het.client.measures import effective_learning_rate
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import mean
from fedjax_het.server.summaries import mean_direction
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, Positive, PositiveFraction, validate_arguments


@validate_arguments
def fedcm(
    learning_rate: NonNegative = 0.1,
    alpha: PositiveFraction = 0.1,
    *,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "uniform",
    normalisation: Literal["client", "cohort"] = "client",
    clip: Positive | None = None,
    **training: Unpack[TrainingWithoutRate],
) -> Algorithm:
    """FedCM: clients follow the server's momentum more than their gradients.

        y <- y - lr (alpha g(y) + (1 - alpha) Delta),                 K_i steps from y = w
        w <- w + eta_g 1/|S| sum_S (y_i - w),   Delta <- 1/|S| sum_S (w - y_i) / (K_i lr)

    Wire: down w and Delta, twice FedAvg's; up y_i - w and K_i lr, one number. Clients keep nothing, so that it suits
    small cohorts of many.

    Setting: SGD .1, decay 1e-3, batch 50, 5 epochs, 10 of 100 clients.
    Weight decay is added in full, outside the mixture. Local momentum is refused: Delta would no longer be a mean
    gradient. No code by the authors was found; a third party's (FL-Simulator) agrees with these equations.

    Args:
        learning_rate: lr of the local steps, which Delta is divided by.
        alpha: The paper's α in (0, 1], .1; 1 is FedAvg.
        server_learning_rate: eta_g, 1; the paper's is ours / (K lr).
        weighting: "uniform" or "samples".
        normalisation: "client" divides each update by its own K_i lr, "cohort" the mean update by the mean K_i lr.
        clip: Largest norm of a mixed direction; None in the paper, 10 in FL-Simulator.
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Momentum or another optimizer is given, or a number is out of range.

    References:
        Xu et al., FedCM: Federated Learning with Client-level Momentum, 2021. arXiv:2106.10874
    """
    for setting in ("momentum", "optimizer"):
        if training.get(setting):
            raise InputError(f"{setting}: FedCM's server momentum needs plain local SGD. Leave {setting} out.")
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(learning_rate, **training, gradient=momentum_gradient(alpha, clip)),
        reports={"momentum": effective_learning_rate(learning_rate, training.get("learning_rate_schedule"))},
        published={"momentum": mean_direction(weighting, normalisation)},
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
