"""FedEM."""

from typing import Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.mixtures import expected_cross_entropy, with_expected_weights
from fedjax_het.models import mixture
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import personal
from fedjax_het.validation import Count, NonNegative, validate_arguments


@validate_arguments
def fedem(
    num_components: Count = 3,
    *,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedEM: a mixture of shared networks with weights of each client's own.

        q_m(x, y) = softmax_m(log pi_im - l_m(x, y)) at the received components,   pi_im <- mean of q_m over the client
        min  sum_m 1/B sum_b q_m(x_b, y_b) l_m(x_b, y_b);   every component is averaged as FedAvg does

    Communication: all components to every client and back, M times FedAvg's. Client state: pi_i, which stays uniform
    until its first round.

    A client predicts with sum_m pi_im softmax(z_m), the server with the mean of the clients' pi_i. The components start
    from different random weights: equal ones stay equal. num_components = 1 is FedAvg. The pass that computes q is in
    evaluation mode, with the client's training examples, and without augmentation for pi.
    Setting: 3 components, 80 clients of CIFAR-10, 200 rounds of one epoch, batch 128, rate .03.
    Differences from the authors' code: it averages over all clients, where those that did not take part count with the
    old components; here, over the cohort.

    Args:
        num_components: The number of components, the paper's M (default 3).
        server_learning_rate: Factor of the mean update (default 1).
        weighting: Client weights: "samples" (default) or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021. arXiv:2108.10252;
        code omarfoq/FedEM.
    """
    return Algorithm(
        objective=(expected_cross_entropy(),),
        local_update=with_expected_weights(sgd(**training)),
        aggregator=mean(weighting),
        adapt=mixture(num_components),
        sharing=personal("params/mixture/*"),
        server_optimizer=optax.sgd(server_learning_rate),
    )
