"""FedRS."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import Uniform
from fedjax_het.client.gradients import clipped_gradient, plain_gradient
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import RestrictionScale, restricted_cross_entropy
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Fraction, NonNegative, Positive, Preset, validate_arguments, with_presets


@with_presets(released={"scaling": "share", "clip": 100.0})
@validate_arguments
def fedrs(
    alpha: Annotated[Fraction, Uniform(0.0, 1.0)] = 0.5,
    scaling: RestrictionScale = "missing",
    *,
    clip: Positive | None = None,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """FedRS: scale down the logits of classes that a client lacks.

        min  1/B sum_b CE(s z_b, y_b),   s_c = 1 for classes that the client has, alpha for the others
        then average as FedAvg does

    Communication: same as FedAvg. Client state: none. Evaluation uses the unscaled logits.

    Setting: alpha of .9, .5, .1; 100 clients with 2 of 10 or 20 of 100 classes, 10 per round, SGD .03, momentum .9,
    decay 1e-5, batch 64, 2 or 5 epochs, 1000 rounds.
    Deviations: the released code uses s_c = alpha + (1 - alpha) n_c / max_j n_j, which also scales rare classes, and
    clips gradients at norm 100: preset "released". Its heads have no bias; here the whole logit is scaled. Its minimum
    of 5 local steps is not reproduced: set `steps`.

    Args:
        alpha: The paper's α in [0, 1] (default .5). 1 is FedAvg; 0 sets the logits of missing classes to 0.
        scaling: Factors s_c: "missing" (printed) or "share" (released).
        clip: Maximum norm of the gradient. None: no clipping.
        server_learning_rate: Factor of the mean update (default 1).
        weighting: Client weights: "samples" or "uniform".
        preset: "released" scales and clips as the authors' code does.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, KDD 2021;
        code lxcnju/FedRepo.
    """
    return Algorithm(
        objective=(restricted_cross_entropy(alpha, scaling),),
        local_update=sgd(**training, gradient=plain_gradient if clip is None else clipped_gradient(clip)),
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
