"""FedGH."""

from types import MappingProxyType
from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import harmonized_mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Keywords, KeywordsOf, NonNegative, validate_arguments


@validate_arguments
def fedgh(
    weighting: WeightingOrName = "samples",
    *,
    aggregation: Annotated[Keywords, KeywordsOf(harmonized_mean, given=("weighting",))] = MappingProxyType({}),
    server_learning_rate: NonNegative = 1.0,
    **training: Unpack[Training],
) -> Algorithm:
    """FedGH: harmonize conflicting updates pair by pair.

        for each pair i < j with g_i' . g_j < 0:   g_i' <- g_i' - (g_i' . g_j)/|g_j|^2 g_j,   g_j' likewise against g_i
        w <- w + eta_g sum_i p_i g_i'

    Communication: same as FedAvg. Client state: none. There are no hyperparameters.

    Without conflicts this is FedAvg. With conflicts among three or more clients, the order of the ids matters. The
    paper does not specify which of a pair's two updates are the current ones, see `aggregation`.
    No code by the authors was found. FedLD's tables use this name for the method called `hierarchical` here. Another
    FedGH (Yi et al., a generalized global header) is unrelated.

    Args:
        weighting: Client weights: "samples" or "uniform".
        aggregation: Further arguments of `aggregators.harmonized_mean`: conflict_test "current" (the current g_i'
            against g_j as it was sent, as in PCGrad), "original" or "sequential"; pair_order "lexicographic" by client
            id, or "random" by round and seed; and how updates are stacked.
        server_learning_rate: Server learning rate eta_g (default 1).
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Zhang, Sun and Chen, FedGH: Federated Learning via Gradient Harmonization, 2023. arXiv:2309.06692
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=harmonized_mean(weighting=weighting, **aggregation),
        server_optimizer=optax.sgd(server_learning_rate),
    )
