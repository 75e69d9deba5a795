"""FedAvg."""

from typing import Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, validate_arguments


@validate_arguments
def fedavg(
    server_learning_rate: NonNegative = 1.0, weighting: WeightingOrName = "samples", **training: Unpack[Training]
) -> Algorithm:
    """FedAvg: train locally, average the models.

        w_i = SGD(F_i, start at w),   w <- w + eta_g sum_i p_i (w_i - w),   p_i = n_i / sum_j n_j

    Communication: down w, up w_i - w and n_i. Client state: none.

    Args:
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" (the paper's p_i) or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
        arXiv:1602.05629
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
