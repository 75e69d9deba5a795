"""FedBN: batch normalisation stays at home.

    w_i = SGD(F_i),   shared leaves: w <- sum_i p_i w_i,   norm leaves (scale, bias, mean, variance): client i's own

Wire: as FedAvg without the norm layers. Kept by a client: its norm leaves, also through rounds it sits out. A client
that never trained is given the mean of those that did.
local_norms: "batch" (by the layer's class, so that norms in shortcuts count) or "all" normalisation layers. A model
whose norms have no leaves is refused: nothing would stay.
weighting: "samples" or "uniform" (the authors' code). Authors' setting: SGD .01, batch 32, 1 epoch, 100 rounds.
Deviation: the authors decide by "bn" in a parameter's name, which shares a ResNet's four downsampling norms.
Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021. arXiv:2102.07623
"""

from typing import Unpack

import optax

from fedjax_het import sharing
from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.errors import InputError, nearest
from fedjax_het.server.aggregators import mean
from fedjax_het.validation import NonNegative, validate_arguments

LOCAL_NORMS = {"batch": sharing.batch_norms, "all": sharing.all_norms}


@validate_arguments
def fedbn(
    local_norms: str = "batch",
    server_learning_rate: NonNegative = 1.0,
    weighting: str = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """The recipe at the top of this file. training: local training's settings, see `local_updates.sgd`."""
    if local_norms not in LOCAL_NORMS:
        raise InputError(f"local_norms: unknown option '{local_norms}'. {nearest(local_norms, LOCAL_NORMS)}")
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        sharing=LOCAL_NORMS[local_norms],
        server_optimizer=optax.sgd(server_learning_rate),
    )
