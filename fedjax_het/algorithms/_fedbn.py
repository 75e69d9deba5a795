"""FedBN."""

from typing import Literal, Unpack

import optax

from fedjax_het import sharing
from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, Preset, validate_arguments, with_presets


@with_presets(released={"weighting": "uniform"})
@validate_arguments
def fedbn(
    local_norms: Literal["batch", "all"] = "batch",
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    *,
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """FedBN: keep normalization layers local to each client.

        w_i = SGD(F_i),   shared leaves: w <- sum_i p_i w_i,   norm leaves (scale, bias, mean, variance): client i's own

    Communication: same as FedAvg without the normalization layers. Client state: the normalization layers, also
    while it does not participate. A client that never trained gets the mean over the clients that did.

    Setting: SGD .01, batch 32, 1 epoch, 100 rounds.
    Deviation: the authors select parameters with "bn" in the name, which shares a ResNet's four downsampling norms.

    Args:
        local_norms: Local layers: "batch" (by class, including norms in shortcuts) or "all" normalization layers. A
            model whose norms have no leaves raises an error, because nothing would be local.
        server_learning_rate: Factor of the mean update (default 1).
        weighting: Client weights: "samples" or "uniform" (the authors' code).
        preset: "released" weights clients as the authors' code does.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021.
        arXiv:2102.07623; code med-air/FedBN.
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        sharing=sharing.batch_norms if local_norms == "batch" else sharing.all_norms,
        server_optimizer=optax.sgd(server_learning_rate),
    )
