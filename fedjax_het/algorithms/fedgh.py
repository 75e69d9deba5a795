"""FedGH: harmonize the updates of every two clients in conflict.

    for each pair i < j with g_i' . g_j < 0:   g_i' <- g_i' - (g_i' . g_j)/|g_j|^2 g_j,   g_j' likewise against g_i
    w <- w + eta_g sum_i p_i g_i'                                    (server/aggregators/conflict.py)

Wire: as FedAvg. Nothing is kept between rounds, and there is nothing to tune.
conflict_test: "current" (g_i' as it runs against g_j as it was sent, as PCGrad), "original", "sequential": the paper's
summary leaves it open.   pair_order: "lexicographic" by client id, or "random" by round and `seed`.
weighting: "samples".   With no conflict it is FedAvg. With three or more in conflict the order of the ids matters.
No authors' code was found. FedLD's tables list under this name the method that is here `hierarchical`; a third FedGH
(Yi et al., a generalised global header) is unrelated.
Zhang, Sun and Chen, FedGH: Federated Learning via Gradient Harmonization, 2023. arXiv:2309.06692
"""

from typing import Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import harmonized_mean
from fedjax_het.validation import NonNegative, Seed, validate_arguments


@validate_arguments
def fedgh(
    conflict_test: str = "current",
    *,
    pair_order: str = "lexicographic",
    seed: Seed = 0,
    weighting: str = "samples",
    scope: str = "model",
    buffers: str = "weighted_mean",
    stack: str = "float32",
    server_learning_rate: NonNegative = 1.0,
    **training: Unpack[Training],
) -> Algorithm:
    """The recipe at the top of this file. training: local training's settings, see `local_updates.sgd`.

    seed: of the random pair order, nothing else. scope, buffers and stack are those of `harmonized_mean`.
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=harmonized_mean(
            conflict_test, weighting, pair_order=pair_order, seed=seed, scope=scope, buffers=buffers, stack=stack
        ),
        server_optimizer=optax.sgd(server_learning_rate),
    )
