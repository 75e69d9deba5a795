"""FedNova."""

from typing import Literal, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import LearningRate, TrainingWithoutMomentum, sgd
from fedjax_het.client.measures import CoefficientRule, coefficient_norm
from fedjax_het.client.objectives import cross_entropy, proximal
from fedjax_het.errors import InputError
from fedjax_het.server import optimizers
from fedjax_het.server.aggregators import normalized_mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import (
    FractionBelowOne,
    NonNegative,
    Positive,
    Preset,
    may_be_nonzero,
    validate_arguments,
    with_presets,
)


@with_presets(released={"a_norm": "released", "tau_eff": "released"})
@validate_arguments
def fednova(
    learning_rate: LearningRate = 0.1,
    momentum: FractionBelowOne = 0.0,
    mu: NonNegative = 0.0,
    *,
    gmf: FractionBelowOne = 0.0,
    a_norm: CoefficientRule = "impulse",
    tau_eff: Literal["coefficients", "steps", "released"] | Positive = "coefficients",
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    preset: Preset = "default",
    **training: Unpack[TrainingWithoutMomentum],
) -> Algorithm:
    """FedNova: normalize updates by their effective number of local steps.

        w_i - w = -lr sum_k a_ik g_ik,   d_i = (w_i - w) / |a_i|_1       a: from momentum, the proximal term, the steps
        w <- w + eta_g tau_eff sum_i p_i d_i,   tau_eff = sum_i p_i |a_i|_1

    Communication: same as FedAvg, plus the number |a_i|_1 up. Client state: none. With the same number of steps on
    all clients this is FedAvg.

    Setting: SGD .1, decay 1e-4, momentum 0 (.9 in the paper's runs), 200 rounds, Dirichlet .2.
    Deviations from the code: p_i are shares of the cohort, not of all clients; batch statistics are simply averaged.
    Other local optimizers raise an error, because a is known for linear rules only.

    Args:
        learning_rate: Learning rate lr of the local steps.
        momentum: Momentum of the local steps (default 0).
        mu: Weight of a proximal term (default 0).
        gmf: Server momentum (default 0).
        a_norm: |a_i|_1: "impulse" (exact) or "released", which double counts when momentum and mu are combined.
        tau_eff: "coefficients", "steps" (sum_i p_i tau_i), a number, or "released": "steps" if mu > 0 and
            "coefficients" otherwise, as in the authors' code.
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" (the paper's p_i) or "uniform".
        preset: "released" uses coefficients and effective steps as in the authors' code.
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Another local optimizer is given, or a number is out of range.

    References:
        Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020.
        arXiv:2007.07481; code JYWa/FedNova, Xtra-Computing/NIID-Bench (a third party).
    """
    if training.get("optimizer"):
        raise InputError(
            "optimizer: FedNova knows the coefficients of SGD only. Leave optimizer out; momentum may stay."
        )
    schedule = training.get("learning_rate_schedule")
    is_pulled = may_be_nonzero(mu)
    if tau_eff == "released":
        tau_eff = "steps" if is_pulled else "coefficients"
    return Algorithm(
        objective=(cross_entropy(), proximal(mu)) if is_pulled else (cross_entropy(),),
        local_update=sgd(learning_rate, momentum, **training),
        reports={"a_norm": coefficient_norm(learning_rate, momentum, mu, a_norm, schedule)},
        aggregator=normalized_mean(weighting, tau_eff),
        server_optimizer=optimizers.sgd(server_learning_rate, gmf),
    )
