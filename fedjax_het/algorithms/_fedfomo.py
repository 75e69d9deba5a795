"""FedFomo."""

from typing import Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import Examples, result
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.peers import Distance, chosen_by_affinity, lower_losses, no_report, own_peer_model
from fedjax_het.server.aggregators import mean
from fedjax_het.server.client_models import affinity_of_clients, latest_models
from fedjax_het.validation import Count, Fraction, NonNegative, validate_arguments


@validate_arguments
def fedfomo(
    num_models: Count = 5,
    epsilon: Fraction = 0.3,
    epsilon_decay: NonNegative = 0.05,
    *,
    distance: Distance = "euclidean",
    examples: Examples = "valid_or_train",
    **training: Unpack[Training],
) -> Algorithm:
    """FedFomo: move towards models of others that lower the loss.

        a_ij = (L_i(v_i) - L_i(v_j)) / |v_j - v_i| for `num_models` other clients j
        v_i <- SGD(F_i, start at v_i + sum_j a_ij^+ (v_j - v_i) / sum_j a_ij^+)

    Communication: down num_models models; up v_i and the a_ij. The server keeps the latest models of all clients, and
    sums of the a_ij, the affinities. Client state: none beside v_i, the personal model, which begins as the
    initial model of all clients.

    A client is offered the models with the largest affinities, or, with the probability epsilon - epsilon_decay r in
    round r, random ones. There is no global model: the server's model, which is evaluated, is the mean of the v_i of a
    round's clients.
    Setting: CIFAR-10, 15 clients, 5 distributions, 20 rounds of 5 epochs, SGD .1, rate times .99 per round, batch 50, 5
    or 10 models, 20 % of the examples for validation (config.data.valid_fraction).
    Differences from the authors' code: it takes the l1 distance, adds the differences to the model before the last
    local training, and offers a client its own model, too.

    Args:
        num_models: The number of models that a client is offered, the paper's M (default 5).
        epsilon: The probability of random models in round 0 (default .3).
        epsilon_decay: Its decrease per round (default .05).
        distance: "euclidean" (default), "l1" (code), or "squared".
        examples: Those of L: "valid", "train", or "valid_or_train": training examples of clients without validation
            examples.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021. arXiv:2012.08565;
        code NVlabs/FedFomo.
    """
    choose = chosen_by_affinity(num_models, epsilon, epsilon_decay)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=lower_losses(sgd(**training), choose, examples, distance),
        reports={"models": no_report, "affinity": result("gains")},
        published={"models": latest_models(num_models), "affinity": affinity_of_clients()},
        aggregator=mean("uniform"),
        personalize=own_peer_model,
    )
