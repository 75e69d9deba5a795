"""FedSR, and its ablation without noise."""

from dataclasses import replace
from typing import Annotated, Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
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
    """FedSR: short representations with little information beyond the class.

        z = mu(x) + sigma(x) eps                                   one draw per example and step
        min  CE(z) + a_L2R 1/B sum_b ||z_b||
             + a_CMI 1/B sum_b KL(N(c mu_b, (c sigma_b)^2) || N(r_mu[y_b], r_sigma[y_b]^2))
        w <- w + eta_g 1/|S| sum_S (w_i - w)                       w: all but r_mu, r_sigma, c

    Communication: same as FedAvg, for a model with one extra layer [feature, 2 D]. Client state: the reference,
    r_mu and r_sigma [class, D] and c, and the optimizer state.

    In evaluation, class probabilities are averaged over num_samples draws.
    Setting: rate .01, momentum .9, weight decay 5e-4 (also for the reference), batch 64, steps=5, 1000 rounds.
    Deviations from the code: |c| sigma replaces c sigma, which gives NaN for c <= 0; the reference survives a restart;
    an epoch visits every example once, while the code draws the batch of each step independently.
    `fedl2r` is the authors' ablation without noise and reference; its representation is the model's own features.

    Args:
        l2r: Weight α of L2R (default .01, PACS).
        cmi: Weight α of CMI (default .001, PACS). 0: no reference.
        num_samples: Number of draws in evaluation (default 20). 0 evaluates mu.
        num_features: Dimension D of the representation. None: the model's feature dimension.
        l2r_power: 1 (code) or 2 (paper).
        learn_scale: Whether c is learned (code). False: c = 1 (paper).
        share_reference: Whether r_mu, r_sigma and c are also averaged.
        reset_optimizer: Whether to reset the local optimizer in each round, as most other algorithms do.
        weighting: Client weights: "uniform" (code) or "samples".
        server_learning_rate: Server learning rate eta_g (default 1).
        preset: "released" sets the options of the public code, which are also the defaults.
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
    """FedL2R: ablation of FedSR without noise and reference.

        min  CE + a_L2R 1/B sum_b ||h_b||               h: the model's own features

    Communication: same as FedAvg. Client state: the optimizer state.

    Args:
        l2r: Weight α of L2R (default .01, PACS).
        l2r_power: 1 (code) or 2 (paper).
        reset_optimizer: Whether to reset the local optimizer in each round, as most other algorithms do.
        weighting: Client weights: "uniform" (code) or "samples".
        server_learning_rate: Server learning rate eta_g (default 1).
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
