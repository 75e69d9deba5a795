"""HarmoFL."""

from dataclasses import replace
from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, pop_optimizer, sgd
from fedjax_het.client.memories import optimizer_state
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.sharpness import PerturbationNorm, sharpness_aware
from fedjax_het.models import Band, FirstAverage, amplitude_normalised
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Count, Fraction, NonNegative, Preset, validate_arguments, with_presets


@with_presets(released={"decay": 0.0, "band": "dc"})
@validate_arguments
def harmofl(
    alpha: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.05,
    decay: Fraction = 0.1,
    band: Band | None = "full",
    *,
    amplitude_init: FirstAverage = "first",
    amplitude_rounds: Count | None = 1,
    norm: PerturbationNorm = "whole",
    reset_optimizer: bool = False,
    weighting: WeightingOrName = "uniform",
    server_learning_rate: NonNegative = 1.0,
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """HarmoFL: common amplitude spectrum for all images, and flat optima.

        Psi(x) = IDFT(Abar exp(j phase(x)))                          first operation of the network
        g = grad F_i(w),  delta = alpha g / ||g||,   w <- w - lr grad F_i(w + delta)
        server: w <- w + eta_g sum_i p_i (w_i - w),   Abar = 1/N sum_i Abar_i after the first round, then fixed

    Communication: same as FedAvg, plus one amplitude [height, width, channel]. Client state: the optimizer state.

    Images whose means have both signs, such as standardized images, raise an error, because the sign belongs to the
    phase. The paper's images are in 0..1. Amplitudes are averaged without weights for either `weighting`, as in
    Algorithm 1.
    Setting: momentum .9 and weight decay 1e-4 (also the defaults here); learning rate 1e-3 (Camelyon17), 1e-4 (nuclei,
    prostate with Adam).
    Deviations from the code: decay .1 takes effect (the code truncates it to the integer 0), the average is updated
    once per step and never in evaluation, and weights are not perturbed in place. The sign in line 15 of the paper's
    Algorithm 1 is a misprint.

    Args:
        alpha: Size of the perturbation, the paper's α (default .05). 0 disables it.
        decay: Decay v of the average amplitude (default .1).
        band: Frequencies to normalize: "full" (Eqs. 3 and 4), "dc" (as in the released code; with decay=0, a mean
            shift), a fraction of the spectrum, or None for no amplitude normalization.
        amplitude_init: Average after the first batch: its mean ("first"), the paper's literal rule ("zero"), or that
            rule with bias correction ("debias").
        amplitude_rounds: Number of rounds in which the average amplitude is updated (default 1). None: every round.
        norm: Scope of the perturbation's norm: the "whole" model or each "tensor".
        reset_optimizer: Whether to reset the local optimizer in each round, as most other algorithms do.
        weighting: Client weights p_i: "uniform" (code) or "samples".
        server_learning_rate: Server learning rate eta_g (default 1).
        preset: "released" uses the amplitudes of the public code: decay=0 and band="dc".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Jiang et al., HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on Heterogeneous Medical
        Images, AAAI 2022. arXiv:2112.10775; code med-air/HarmoFL.
    """
    settings: Training = {"momentum": 0.9, "weight_decay": 1e-4, **training}
    optimizer = pop_optimizer(settings)
    local_update = sgd(
        **settings,
        optimizer=optimizer,
        gradient=sharpness_aware(alpha, norm, only=settings.get("only")),
        keep_optimizer=not reset_optimizer,
    )
    algorithm = Algorithm(
        objective=(cross_entropy(),),
        local_update=local_update,
        aggregator=mean(weighting, unweighted=("amplitude",)),
        server_optimizer=optax.sgd(server_learning_rate),
        memory={} if reset_optimizer else {"optimizer": optimizer_state(optimizer)},
    )
    if band is None:
        return algorithm
    return replace(algorithm, adapt=amplitude_normalised(decay, band, amplitude_init, amplitude_rounds))
