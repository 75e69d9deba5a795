"""FedLD: bound the margin on clients, average along principal directions.

    min  CE + lam 1/B sum_b log(1 + ||z_b||^2)                       z_b: logits
    w <- w + eta_g sum_i p_i g_i^r,   g_i = w_i - w expressed by the first fraction*m principal axes of the cohort's
                                      updates, at its own length (server/aggregators/principal.py)

Wire: as FedAvg. Nothing is kept between rounds.
lam: the paper's λ, .1 / .03 / .03 (Retina splits 1 to 3), .01 (COVID-FL).   fraction: of the axes to keep, .8.
Setting: SGD .01 (Retina), .005 (COVID-FL), batch 50, 1 epoch, 200 rounds; the code adds momentum .5, decay 5e-4.
Ablations: lam=0 keeps the principal directions alone, principal=False the margin alone.
`fedld_released` is the public code where it departs from the paper, for comparison with published numbers. Two of its
defects are not reproduced: training in evaluation mode, and a learning-rate warm-up that only FedLD itself gets; that
is learning_rate_schedule=warm_up(5).
Zeng et al., Tackling Data Heterogeneity in Federated Learning via Loss Decomposition; official code
Zeng-Shuang/FedLD.
"""

from typing import Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy, margin
from fedjax_het.server.aggregators import mean, principal_directions
from fedjax_het.validation import CountOrZero, NonNegative, PositiveFraction, validate_arguments

RELEASED = {
    "margin_form": "softmax_batch",
    "weighting": "uniform",
    "eig_norm": "sum_all",
    "rounding": "truncate",
    "scope": "tensor",
    "warmup_mean_rounds": 1,
}


@validate_arguments
def fedld(
    lam: NonNegative = 0.03,
    fraction: PositiveFraction = 0.8,
    *,
    margin_form: str = "logits_mean",
    principal: bool = True,
    weighting: str = "samples",
    correction: str = "per_axis",
    eig_norm: str = "l2_selected",
    projection: str = "orthogonal",
    rounding: str = "floor",
    scope: str = "model",
    buffers: str = "weighted_mean",
    stack: str = "float32",
    warmup_mean_rounds: CountOrZero = 0,
    server_learning_rate: NonNegative = 1.0,
    **training: Unpack[Training],
) -> Algorithm:
    """The recipe at the top of this file. training: local training's settings, see `local_updates.sgd`.

    margin_form: how the term is written, see `objectives.margin`.   principal: False averages the updates as they are.
    The options from weighting to warmup_mean_rounds are those of `principal_directions`.
    """
    aggregator = principal_directions(
        fraction,
        weighting,
        correction=correction,
        eig_norm=eig_norm,
        projection=projection,
        rounding=rounding,
        scope=scope,
        buffers=buffers,
        stack=stack,
        warmup_mean_rounds=warmup_mean_rounds,
    )
    return Algorithm(
        objective=(cross_entropy(), margin(lam, margin_form)),
        local_update=sgd(**training),
        aggregator=aggregator if principal else mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )


@validate_arguments
def fedld_released(
    lam: NonNegative = 0.03, fraction: PositiveFraction = 0.8, **training: Unpack[Training]
) -> Algorithm:
    """FedLD as its public code has it (RELEASED), but for two defects.

    They are in training; see the top of this file.
    """
    return fedld(lam, fraction, **RELEASED, **training)
