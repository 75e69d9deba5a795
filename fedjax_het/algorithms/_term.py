"""TERM."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import training_loss
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName, released_tilt, tilted
from fedjax_het.validation import (
    Finite,
    NonNegative,
    Preset,
    refuse_without_effect,
    validate_arguments,
    with_presets,
)


@with_presets(released={"normalised": False})
@validate_arguments
def term(
    t: Annotated[Finite, LogUniform(1e-2, 10.0)] = 0.1,
    *,
    normalised: bool = True,
    weighting: WeightingOrName = "uniform",
    server_learning_rate: NonNegative = 1.0,
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """TERM: tilt the average towards clients with large losses.

        min  1/t log(1/N sum_i exp(t F_i))
        w <- w + sum_i q_i (w_i - w),   q_i = p_i exp(t F_i) / sum_j p_j exp(t F_j),   F at the received w

    Communication: same as FedAvg, plus the number F_i up. Client state: none. A client computes F_i on all its training
    examples before it trains, one pass forward. t = 0 is FedAvg with weights p_i; t < 0 favors small losses.

    Setting: Vehicle, t .1, lr .01, 30 rounds, 10 clients, batch 64.
    Deviations: the released code averages the clients' w + q_i (w_i - w) once more, a factor 1/m, and normalizes q by a
    running mean of exponentials, which is half as large in the first round: preset "released". A third party's
    code has p_i = n_i / n and overflows for large losses; weighting="samples" does not.

    Args:
        t: The paper's t.
        normalised: False uses the weights of the released code, see `weightings.released_tilt`.
        weighting: Client weights p_i: "uniform" (paper) or "samples".
        server_learning_rate: Factor of the mean update (default 1).
        preset: "released" sets the options of the public code.
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: A number is out of range, or an option has no effect.

    References:
        Li, Beirami, Sanjabi and Smith, Tilted Empirical Risk Minimization, ICLR 2021. arXiv:2007.01162; code
        litian96/TERM.
    """
    if not normalised:
        refuse_without_effect(term, "with normalised=False", weighting=weighting)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        reports={"loss": training_loss("pre_eval")},
        aggregator=mean(tilted(t, weighting) if normalised else released_tilt(t)),
        server_optimizer=optax.sgd(server_learning_rate),
    )
