"""FedAdagrad: Adagrad on the server.

    w_i = SGD(F_i, start at w),   D = sum_i p_i (w_i - w)
    v <- v + D^2,   w <- w + eta D / (sqrt(v) + tau)

Wire: as FedAvg; v stays on the server. Clients keep nothing.
eta: server_learning_rate, .1.   tau: how adaptive, 1e-3 (grid 1e-5 to 1e-1).   weighting: "samples" or "uniform".
v0: first value of v, 0 as in the experiments; "tau2" is tau^2, which the paper's Algorithm 2 asks for.
Tuned by Flower's baseline for CIFAR-10: eta .1, tau .01, local rate .0316.
Deviation: batch statistics are plainly averaged.
Reddi et al., Adaptive Federated Optimization, ICLR 2021. arXiv:2003.00295
"""

from typing import Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server import optimizers
from fedjax_het.server.aggregators import mean
from fedjax_het.validation import NonNegative, Positive, validate_arguments


@validate_arguments
def fedadagrad(
    server_learning_rate: NonNegative = 0.1,
    tau: Positive = 1e-3,
    v0: str | NonNegative = 0.0,
    *,
    weighting: str = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """The recipe at the top of this file. training: local training's settings, see `local_updates.sgd`."""
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optimizers.fedadagrad(server_learning_rate, tau, v0),
    )
