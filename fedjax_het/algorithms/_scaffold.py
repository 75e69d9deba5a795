"""SCAFFOLD."""

from typing import Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.gradients import control_variate_gradient
from fedjax_het.client.local_updates import TrainingWithoutRate, sgd
from fedjax_het.client.measures import Control, change_of_control
from fedjax_het.client.memories import control_variate
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import mean
from fedjax_het.server.summaries import accumulate_change
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, validate_arguments


@validate_arguments
def scaffold(
    learning_rate: NonNegative = 0.1,
    server_learning_rate: NonNegative = 1.0,
    control: Control = "path",
    weighting: WeightingOrName = "uniform",
    **training: Unpack[TrainingWithoutRate],
) -> Algorithm:
    """SCAFFOLD: correct each client's drift by control variates.

        y <- y - lr (g(y) - c_i + c),                      K_i steps from y = w
        c_i+ = c_i - c + (w - y) / (K_i lr)                (option II; option I: c_i+ = grad F_i(w))
        w <- w + eta_g 1/|S| sum_S (y_i - w),              c <- c + 1/N sum_S (c_i+ - c_i)

    Wire: Down w and c, up y_i - w and c_i+ - c_i: twice FedAvg's. Kept by a client: c_i, the size of the shared
    parameters.

    N counts all clients, S the cohort. Local momentum and weight decay are refused: (w - y)/(K lr) would no longer be a
    mean gradient. No code by the authors was found; third-party codes agree with these equations to 1e-15.

    Args:
        learning_rate: lr of the local steps.
        server_learning_rate: The paper's eta_g, 1.
        control: "path" (option II) or "start" (option I).
        weighting: "uniform" (paper) or "samples"; c always takes 1/N.
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Momentum, weight decay or another optimizer is given, or a number is out of range.

    References:
        Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging, ICML 2020. arXiv:1910.06378
    """
    for setting in ("momentum", "weight_decay", "optimizer"):
        if training.get(setting):
            raise InputError(f"{setting}: SCAFFOLD's control variates need plain SGD. Leave {setting} out.")
    local_update = sgd(learning_rate, **training, gradient=control_variate_gradient)
    change = change_of_control(learning_rate, control, local_update.batch_size, training.get("learning_rate_schedule"))
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=local_update,
        memory={"control": control_variate(change)},
        reports={"control": change},
        published={"control": accumulate_change()},
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
