"""FedLD."""

from types import MappingProxyType
from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import MarginForm, cross_entropy, margin
from fedjax_het.server.aggregators import mean, principal_directions
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import (
    Keywords,
    KeywordsOf,
    NonNegative,
    PositiveFraction,
    Preset,
    refuse_without_effect,
    validate_arguments,
    with_presets,
)


@with_presets(
    released={
        "margin_form": "softmax_batch",
        "weighting": "uniform",
        "aggregation": {"eig_norm": "sum_all", "rounding": "truncate", "scope": "tensor", "warmup_mean_rounds": 1},
    }
)
@validate_arguments
def fedld(
    lam: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.03,
    fraction: PositiveFraction = 0.8,
    *,
    margin_form: MarginForm = "logits_mean",
    principal: bool = True,
    weighting: WeightingOrName = "samples",
    aggregation: Annotated[
        Keywords, KeywordsOf(principal_directions, given=("fraction", "weighting"))
    ] = MappingProxyType({}),
    server_learning_rate: NonNegative = 1.0,
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """FedLD: bound the margin on clients, average along principal directions.

        min  CE + lam 1/B sum_b log(1 + ||z_b||^2)                       z_b: logits
        w <- w + eta_g sum_i p_i g_i^r
        g_i^r: g_i = w_i - w, projected on the first fraction*m principal axes of the updates, at its own norm

    Communication: same as FedAvg. Client state: none.

    Setting: SGD .01 (Retina), .005 (COVID-FL), batch 50, 1 epoch, 200 rounds; the code adds momentum .5, decay 5e-4.
    Ablations: lam=0 uses only the principal directions, principal=False only the margin term.
    Two defects of the public code are not reproduced, not even with preset="released": training in evaluation mode, and
    a learning-rate warm-up for FedLD only (available as learning_rate_schedule=warm_up(5)).

    Args:
        lam: The paper's λ (default .03): .1 / .03 / .03 (Retina splits 1 to 3), .01 (COVID-FL).
        fraction: Fraction of principal axes to keep (default .8).
        margin_form: Form of the margin term: "logits_mean" (paper), "softmax_batch" (released), "logits_batch" or
            "softmax_mean".
        principal: Whether to average along principal directions. False averages the updates unchanged.
        weighting: Client weights: "samples" (the paper's p_i) or "uniform" (released).
        aggregation: Further arguments of `aggregators.principal_directions`.
        server_learning_rate: Server learning rate eta_g (default 1).
        preset: "released" follows the public code where it differs from the paper, for comparison with published
            numbers.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Zeng et al., Tackling Data Heterogeneity in Federated Learning via Loss Decomposition, MICCAI 2024.
        arXiv:2408.12300; code Zeng-Shuang/FedLD.
    """
    aggregator = principal_directions(fraction, weighting, **aggregation)
    if not principal:
        refuse_without_effect(fedld, "with principal=False", fraction=fraction)
    return Algorithm(
        objective=(cross_entropy(), margin(lam, margin_form)),
        local_update=sgd(**training),
        aggregator=aggregator if principal else mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
