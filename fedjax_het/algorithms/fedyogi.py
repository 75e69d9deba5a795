"""FedYogi: Yogi on the server.

    w_i = SGD(F_i, start at w),   D = sum_i p_i (w_i - w)
    m <- b1 m + (1 - b1) D,   v <- v - (1 - b2) D^2 sign(v - D^2)
    w <- w + eta m / (sqrt(v) + tau)

Wire: as FedAvg; m and v stay on the server. Clients keep nothing.
eta: server_learning_rate, .01.   b1, b2: the paper's betas, .9 and .99.   tau: how adaptive, 1e-3 (1e-5 to 1e-1).
v0: first value of v, 0 as in the experiments; "tau2" is tau^2, which the paper's Algorithm 2 asks for.
bias_correction: None (paper) | "adam" (the authors' code) | "flower" (one step ahead; Flower does so for Adam only).
weighting: "samples" or "uniform".
Tuned by Flower's baseline for CIFAR-10: eta .01, tau .001, local rate .0316.
Deviation: batch statistics are plainly averaged.
optax.yogi corrects the bias and begins at v = 1e-6; the authors' Yogi class begins at 1 unless it is told.
Reddi et al., Adaptive Federated Optimization, ICLR 2021. arXiv:2003.00295
"""

from typing import Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server import optimizers
from fedjax_het.server.aggregators import mean
from fedjax_het.validation import FractionBelowOne, NonNegative, Positive, validate_arguments


@validate_arguments
def fedyogi(
    server_learning_rate: NonNegative = 0.01,
    b1: FractionBelowOne = 0.9,
    b2: FractionBelowOne = 0.99,
    tau: Positive = 1e-3,
    *,
    v0: str | NonNegative = 0.0,
    bias_correction: str | None = None,
    weighting: str = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """The recipe at the top of this file. training: local training's settings, see `local_updates.sgd`."""
    optimizer = optimizers.fedyogi(server_learning_rate, b1, b2, tau, v0=v0, bias_correction=bias_correction)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optimizer,
    )
