"""FedMGC: focal loss on clients, conflicts with dominant updates removed.

    min  1/B sum_b -beta (1 - p_b)^gamma log p_b                     p_b: probability of the true class
    p_i = 1/(K-1) sum_{j != i} (|g_i| + |g_j|)/2 cos(g_i, g_j),   z_i = p_i / l_i
    dominant: the ceil(fraction K) clients of largest z; every update loses what points against them, in falling z
    w <- w + eta_g 1/K sum_i g_i'                                    (server/aggregators/conflict.py)

Wire: as FedAvg, and one number up, the loss l_i. Nothing is kept between rounds.
gamma, beta: the paper's γ in {.1, .2, .5, 1} and β in {1, 1.2, 1.5, 2}, tuned by data set; which values won is not
given, the defaults are mid-grid.   fraction: λ, of the clients that dominate, .5.
client_loss: which l_i, left open; see `measures.training_loss`.
Setting: SGD .001, batch 128, 10 epochs, 10 of 100 clients a round with equally much data, Dirichlet .5 and 1.
Ablations: dominant=False keeps the focal loss alone, `fedavg_dgc` the dominant gradient correction (DGC) alone,
`fedprox_dgc` puts it on FedProx.
No code was released. Where the text contradicts itself (p_i, what is projected when), its definitions and Algorithm 2
decide, and the other readings are options.
Wang, Mao, Wang, Wu and Wu, Joint Focal Loss and Dominant Gradient Correction for Gradient Conflict in Federated
Learning.
"""

from dataclasses import replace
from typing import Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import training_loss
from fedjax_het.client.objectives import cross_entropy, focal, proximal
from fedjax_het.server.aggregators import dominant_correction, mean
from fedjax_het.validation import Fraction, NonNegative, PositiveFraction, validate_arguments


@validate_arguments
def fedmgc(
    gamma: NonNegative = 0.5,
    beta: NonNegative = 1.5,
    fraction: PositiveFraction = 0.5,
    *,
    dominant: bool = True,
    client_loss: str = "last_epoch_mean",
    p_mode: str = "mean_excl",
    order: str = "one_by_one",
    target: str = "original",
    min_norm_ratio: Fraction = 0.0,
    weighting: str = "uniform",
    scope: str = "model",
    buffers: str = "weighted_mean",
    stack: str = "float32",
    server_learning_rate: NonNegative = 1.0,
    **training: Unpack[Training],
) -> Algorithm:
    """The recipe at the top of this file. training: local training's settings, see `local_updates.sgd`.

    dominant: False averages the updates as they are. The options from p_mode to stack are those of
    `dominant_correction`.
    """
    aggregator = dominant_correction(
        fraction,
        weighting,
        p_mode=p_mode,
        order=order,
        target=target,
        min_norm_ratio=min_norm_ratio,
        scope=scope,
        buffers=buffers,
        stack=stack,
    )
    return Algorithm(
        objective=(focal(gamma, beta),),
        local_update=sgd(**training),
        reports={"loss": training_loss(client_loss)} if dominant else {},
        aggregator=aggregator if dominant else mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )


@validate_arguments
def fedavg_dgc(fraction: PositiveFraction = 0.5, weighting: str = "uniform", **training: Unpack[Training]) -> Algorithm:
    """FedAvg with FedMGC's dominant gradient correction.

    Its other options are to be had by `fedmgc(gamma=0.0, beta=1.0, ...)`.
    """
    return replace(fedmgc(fraction=fraction, weighting=weighting, **training), objective=(cross_entropy(),))


@validate_arguments
def fedprox_dgc(
    mu: NonNegative = 0.01, fraction: PositiveFraction = 0.5, weighting: str = "uniform", **training: Unpack[Training]
) -> Algorithm:
    """FedProx with FedMGC's dominant gradient correction.

    The loss l_i that is reported includes the pull.   mu: the weight of the proximal term, as in `fedprox`.
    """
    return replace(fedavg_dgc(fraction, weighting, **training), objective=(cross_entropy(), proximal(mu)))
