"""SCAFFOLD and FedGAMMA."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm, GradientRule
from fedjax_het.annotations import LogUniform
from fedjax_het.client.gradients import clipped_gradient, control_variate_gradient
from fedjax_het.client.local_updates import LearningRate, TrainingWithoutRate, sgd
from fedjax_het.client.measures import Control, change_of_control
from fedjax_het.client.memories import control_variate
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.sharpness import sharpness_aware
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import mean
from fedjax_het.server.summaries import accumulate_change
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, Positive, validate_arguments


@validate_arguments
def scaffold(
    learning_rate: LearningRate = 0.1,
    server_learning_rate: NonNegative = 1.0,
    control: Control = "path",
    weighting: WeightingOrName = "uniform",
    **training: Unpack[TrainingWithoutRate],
) -> Algorithm:
    """SCAFFOLD: correct client drift with control variates.

        y <- y - lr (g(y) - c_i + c),                      K_i steps from y = w
        c_i+ = c_i - c + (w - y) / (K_i lr)                (option II; option I: c_i+ = grad F_i(w))
        w <- w + eta_g 1/|S| sum_S (y_i - w),              c <- c + 1/N sum_S (c_i+ - c_i)

    Communication: down w and c, up y_i - w and c_i+ - c_i: twice FedAvg's. Client state: c_i, the size of the
    shared parameters.

    N counts all clients, S is the cohort. Local momentum and weight decay raise an error: (w - y)/(K lr) would no
    longer be a mean gradient. No code by the authors was found; third-party codes agree with these equations to 1e-15.

    Args:
        learning_rate: Learning rate lr of the local steps.
        server_learning_rate: The paper's eta_g (default 1).
        control: Rule for c_i+: "path" (option II, the default) or "start" (option I).
        weighting: Client weights: "uniform" (paper) or "samples"; c always takes 1/N.
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Momentum, weight decay or another optimizer is given, or a number is out of range.

    References:
        Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging, ICML 2020. arXiv:1910.06378; code
        Xtra-Computing/NIID-Bench (a third party).
    """
    rule = control_variate_gradient()
    return _with_rule("SCAFFOLD", rule, learning_rate, server_learning_rate, control, weighting, training)


@validate_arguments
def fedgamma(
    learning_rate: LearningRate = 0.1,
    server_learning_rate: NonNegative = 1.0,
    rho: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.01,
    *,
    epsilon: NonNegative = 1e-12,
    clip: Positive | None = None,
    weighting: WeightingOrName = "uniform",
    **training: Unpack[TrainingWithoutRate],
) -> Algorithm:
    """FedGAMMA: FedSAM's gradient with SCAFFOLD's control variates.

        e = rho g(y) / (||g(y)|| + epsilon),   y <- y - lr (g(y + e) - c_i + c),     K_i steps from y = w
        c_i+ = c_i - c + (w - y) / (K_i lr)
        w <- w + eta_g 1/|S| sum_S (y_i - w),              c <- c + 1/N sum_S (c_i+ - c_i)

    Communication: down w and c, up y_i - w and c_i+ - c_i: twice FedAvg's. Client state: c_i, the size of the
    shared parameters. Cost: two gradients per step.

    g is the gradient of the task loss alone; the control variates do not enter e. rho = 0 is SCAFFOLD. Local momentum
    and weight decay raise an error as in `scaffold`: (w - y)/(K lr) would no longer be a mean gradient of the task
    loss.
    Setting (FL-Simulator): rho .01, SGD .1 times .998 per round, batch 50, 5 epochs, 10 of 100 clients, 1,000 rounds.
    No code by the authors was found; a third-party code (FL-Simulator) agrees with these equations. Its weight decay
    1e-3, which enters c_i, and its K_i, taken from client 0, are not reproduced.

    Args:
        learning_rate: Learning rate lr of the local steps.
        server_learning_rate: Server learning rate eta_g (default 1).
        rho: Perturbation radius, the paper's ρ (default .01). 0 is SCAFFOLD.
        epsilon: Constant added to the norm; 1e-7 in FL-Simulator.
        clip: Maximum norm of g(y + e) - c_i + c (10 in FL-Simulator). None: no clipping.
        weighting: Client weights: "uniform" (paper) or "samples"; c always takes 1/N.
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Momentum, weight decay or another optimizer is given, or a number is out of range.

    References:
        Dai et al., FedGAMMA: Federated Learning with Global Sharpness-Aware Minimization, IEEE TNNLS 2023; code
        woodenchild95/FL-Simulator (a third party).
    """
    rule = control_variate_gradient(sharpness_aware(rho, epsilon=epsilon, only=training.get("only")))
    rule = rule if clip is None else clipped_gradient(clip, rule)
    return _with_rule("FedGAMMA", rule, learning_rate, server_learning_rate, "path", weighting, training)


def _with_rule(
    name: str,
    rule: GradientRule,
    learning_rate: float,
    server_learning_rate: float,
    control: Control,
    weighting: WeightingOrName,
    training: TrainingWithoutRate,
) -> Algorithm:
    for setting in ("momentum", "weight_decay", "optimizer"):
        if training.get(setting):
            raise InputError(f"{setting}: {name}'s control variates need plain SGD. Leave {setting} out.")
    local_update = sgd(learning_rate, **training, gradient=rule)
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
