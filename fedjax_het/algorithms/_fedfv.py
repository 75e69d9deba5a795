"""FedFV."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import Uniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import training_loss
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import ordered_projection
from fedjax_het.validation import CountOrZero, Fraction, NonNegative, validate_arguments


@validate_arguments
def fedfv(
    alpha: Annotated[Fraction, Uniform(0.0, 0.5)] = 0.1,
    tau: CountOrZero = 1,
    *,
    against_cohort: bool = True,
    server_learning_rate: NonNegative = 1.0,
    **training: Unpack[Training],
) -> Algorithm:
    """FedFV: remove conflicts of updates in the order of losses.

        internal:   g_i <- g_i - (g_i . u_j)/|u_j|^2 u_j for each client j by ascending loss with g_i . u_j < 0,
                    for all clients but the alpha of largest loss;   g = mean_i g_i,   u_j = w_j - w
        external:   for k = tau - 1, ..., 0, from round tau on:   s = sum of the last updates u_j with g . u_j < 0
                    of clients that last took part k rounds ago;   g <- g - (g . s)/|s|^2 s
        w <- w + g |mean_i u_i| / |g|

    Communication: same as FedAvg, plus the number F_i up. Client state: none. Server state: the last update of every
    client if tau > 1. A client computes F_i on all its training examples before it trains, one pass forward. Without
    conflicts this is FedAvg with equal weights.

    Setting: CIFAR-10, lr .1, 10 of 100 clients; alpha 0 to .5, tau 0 to 10.
    Deviations: none known. The paper's external step is with absent clients (against_cohort=False), the code's also
    with those of the round. If nothing remains of g, the code divides 0 by 0, and here the model stays.
    Batch statistics take the plain mean.

    Args:
        alpha: The paper's α (default .1), at least one client if it is above 0.
        tau: The paper's τ (default 1), the number of rounds of the external step, this one included. 0: none.
        against_cohort: Whether the external step includes the clients of this round (k = 0).
        server_learning_rate: Factor of the update (default 1).
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: A number is out of range.

    References:
        Wang et al., Federated Learning with Fair Averaging, IJCAI 2021. arXiv:2104.14937; code WwZzz/easyFL (its
        authors').
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        reports={"loss": training_loss("pre_eval")},
        aggregator=ordered_projection(alpha, tau, against_cohort=against_cohort),
        server_optimizer=optax.sgd(server_learning_rate),
    )
