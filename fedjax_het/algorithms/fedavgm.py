"""FedAvgM: momentum on the server.

    w_i = SGD(F_i, start at w),   D = sum_i p_i (w_i - w)
    b <- momentum b + D,   w <- w + eta b

Wire: as FedAvg; b stays on the server. Clients keep nothing.
server_momentum: .9; 0 with server_learning_rate (eta) 1 is FedAvg.   weighting: "samples" or "uniform".
momentum_damping: b <- momentum b + (1 - momentum) D, as in MOON's repository; False.
momentum, among the settings of local training, is the clients'.
Tuned by Flower's baseline for CIFAR-10: eta .316, local rate .0316.
Deviation: batch statistics are plainly averaged; Flower treats them like weights, and a variance may become negative.
Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019.
arXiv:1909.06335
"""

from typing import Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server import optimizers
from fedjax_het.server.aggregators import mean
from fedjax_het.validation import FractionBelowOne, NonNegative, validate_arguments


@validate_arguments
def fedavgm(
    server_learning_rate: NonNegative = 1.0,
    server_momentum: FractionBelowOne = 0.9,
    momentum_damping: bool = False,
    *,
    weighting: str = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """The recipe at the top of this file. training: local training's settings, see `local_updates.sgd`."""
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optimizers.fedavgm(server_learning_rate, server_momentum, momentum_damping=momentum_damping),
    )
