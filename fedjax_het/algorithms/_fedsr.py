"""FedSR, and its ablation without noise."""

from dataclasses import replace
from typing import Annotated, Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm, LogUniform
from fedjax_het.client.local_updates import Training, pop_optimizer, sgd
from fedjax_het.client.memories import optimizer_state
from fedjax_het.client.objectives import conditional_information, cross_entropy, l2_representation
from fedjax_het.models import probabilistic
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import personal, share_all
from fedjax_het.validation import (
    Count,
    CountOrZero,
    NonNegative,
    Preset,
    may_be_nonzero,
    validate_arguments,
    with_presets,
)


@with_presets(released={"l2r_power": 1, "learn_scale": True, "reset_optimizer": False, "weighting": "uniform"})
@validate_arguments
def fedsr(
    l2r: Annotated[NonNegative, LogUniform(1e-4, 0.1)] = 0.01,
    cmi: Annotated[NonNegative, LogUniform(1e-5, 0.01)] = 0.001,
    num_samples: CountOrZero = 20,
    *,
    num_features: Count | None = None,
    l2r_power: Literal[1, 2] = 1,
    learn_scale: bool = True,
    share_reference: bool = False,
    reset_optimizer: bool = False,
    weighting: WeightingOrName = "uniform",
    server_learning_rate: NonNegative = 1.0,
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """FedSR: a short representation that says little beyond the class.

        z = mu(x) + sigma(x) eps                                   one draw per example and step
        min  CE(z) + a_L2R 1/B sum_b ||z_b||
             + a_CMI 1/B sum_b KL(N(c mu_b, (c sigma_b)^2) || N(r_mu[y_b], r_sigma[y_b]^2))
        w <- w + eta_g 1/|S| sum_S (w_i - w)                       w: all but r_mu, r_sigma, c

    Communication: same as FedAvg, for a model with one extra layer [feature, 2 D]. Client state: the reference,
    r_mu and r_sigma [class, D] and c, and the optimizer state.

    Evaluated class probabilities are the mean over num_samples draws.
    Setting: rate .01, momentum .9, weight decay 5e-4 (it acts on the reference too), batch 64, steps=5, 1000 rounds.
    Deviations from the code: |c| sigma where it has c sigma, which is NaN for c <= 0; the reference survives a restart;
    an epoch visits every example once, where the code draws each step's batch afresh.
    `fedl2r` is the authors' ablation without noise and reference; here the model's own features are its representation.

    Args:
        l2r: The paper's α of L2R, .01 (PACS).
        cmi: The paper's α of CMI, .001 (PACS); without it there is no reference.
        num_samples: Draws in evaluation, 20; 0 evaluates mu.
        num_features: D; None is the model's own width.
        l2r_power: 1 (code) or 2 (paper).
        learn_scale: Whether c is learnt (code); False is c = 1 (paper).
        share_reference: Whether r_mu, r_sigma and c are averaged too.
        reset_optimizer: Whether the local optimizer starts afresh each round, as in most other algorithms.
        weighting: "uniform" (code) or "samples".
        server_learning_rate: eta_g, 1.
        preset: "released" has the public code's options, which the defaults are as well.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Nguyen, Torr and Lim, FedSR: A Simple and Effective Domain Generalization Method for Federated Learning, NeurIPS
        2022; code atuannguyen/FedSR.
    """
    optimizer = pop_optimizer(training)
    has_reference = may_be_nonzero(cmi)
    information = (conditional_information(cmi),) if has_reference else ()
    return Algorithm(
        objective=(cross_entropy(), l2_representation(l2r, l2r_power), *information),
        local_update=sgd(**training, optimizer=optimizer, keep_optimizer=not reset_optimizer),
        adapt=probabilistic(num_samples, num_features, has_reference=has_reference, learn_scale=learn_scale),
        memory={} if reset_optimizer else {"optimizer": optimizer_state(optimizer)},
        sharing=personal("params/reference/*") if has_reference and not share_reference else share_all,
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )


@validate_arguments
def fedl2r(
    l2r: Annotated[NonNegative, LogUniform(1e-4, 0.1)] = 0.01,
    l2r_power: Literal[1, 2] = 1,
    *,
    reset_optimizer: bool = False,
    weighting: WeightingOrName = "uniform",
    server_learning_rate: NonNegative = 1.0,
    **training: Unpack[Training],
) -> Algorithm:
    """FedL2R: FedSR without noise and reference, its authors' ablation.

        min  CE + a_L2R 1/B sum_b ||h_b||               h: the model's own features

    Communication: same as FedAvg. Client state: the optimizer state.

    Args:
        l2r: The paper's α of L2R, .01 (PACS).
        l2r_power: 1 (code) or 2 (paper).
        reset_optimizer: Whether the local optimizer starts afresh each round, as in most other algorithms.
        weighting: "uniform" (code) or "samples".
        server_learning_rate: eta_g, 1.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Nguyen, Torr and Lim, FedSR: A Simple and Effective Domain Generalization Method for Federated Learning, NeurIPS
        2022; code atuannguyen/FedSR.
    """
    whole = fedsr(
        reset_optimizer=reset_optimizer, weighting=weighting, server_learning_rate=server_learning_rate, **training
    )
    objective = (cross_entropy(), l2_representation(l2r, l2r_power))
    return replace(whole, objective=objective, adapt=lambda model: model, sharing=share_all)
