"""FedAMP and HeurFedAMP."""

import warnings
from typing import Annotated, Literal, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy, proximal
from fedjax_het.client.peers import (
    PeerWeights,
    cosine_weights,
    from_own_model,
    gaussian_weights,
    no_report,
    own_peer_model,
    peer_mixture,
)
from fedjax_het.server.aggregators import mean
from fedjax_het.server.client_models import latest_models
from fedjax_het.validation import Fraction, NonNegative, Positive, validate_arguments

Start = Literal["mixture", "own"]


@validate_arguments
def fedamp(
    lam: Annotated[NonNegative, LogUniform(1e-3, 10.0)] = 1.0,
    alpha: Annotated[Positive, LogUniform(0.1, 10.0)] = 1.0,
    sigma: Annotated[Positive, LogUniform(0.1, 100.0)] = 1.0,
    *,
    start_from: Start = "mixture",
    is_capped: bool = True,
    **training: Unpack[Training],
) -> Algorithm:
    """FedAMP: attract each model to a mixture of similar models of clients.

        u_i = sum_j xi_ij v_j,   xi_ij = alpha/sigma exp(-|v_i - v_j|^2 / sigma) for j != i,   xi_ii = 1 - sum_j xi_ij
        v_i minimizes F_i(v) + lam/(2 alpha) |v - u_i|^2, from u_i

    Communication: down u_i, up v_i. The server keeps the latest models of all clients; those of clients that have
    trained enter the mixtures, whether they take part or not. Client state: none beside v_i, the personal model,
    which begins as the initial model of all clients.

    There is no global model: the server's model, which is evaluated, is the mean of the v_i of a round's clients. sigma
    has to be of the order of the squared distances between models, or the weights of others are 0.
    No code by the authors was found. PFLlib's term has no gradient, so that each client trains alone, and its weights
    take distances that are not squared.

    Args:
        lam: The paper's λ (default 1). The steps are only stable for a rate below 2 alpha / lam.
        alpha: The paper's α_k (default 1).
        sigma: The paper's σ (default 1).
        start_from: Whether a client starts from the "mixture" u_i (paper), or its "own" model v_i.
        is_capped: Whether the weights of the others are divided by their sum where it exceeds 1, which is possible for
            alpha (N - 1) > sigma; xi_ii would be negative.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021. arXiv:2007.03797; code
        TsingZ0/PFLlib (a third party).
    """
    return _train_towards_mixture(
        gaussian_weights(alpha, sigma, is_capped=is_capped), lam / alpha, start_from, training
    )


@validate_arguments
def heurfedamp(
    lam: Annotated[NonNegative, LogUniform(1e-3, 10.0)] = 1.0,
    self_weight: Fraction = 0.5,
    sigma: Annotated[NonNegative, LogUniform(1.0, 100.0)] = 25.0,
    *,
    start_from: Start = "mixture",
    **training: Unpack[Training],
) -> Algorithm:
    """HeurFedAMP: FedAMP with a constant own weight, and cosines.

        u_i = s v_i + (1 - s) sum_{j != i} xi_ij v_j,   xi_i = softmax_{j != i}(sigma cos(v_i, v_j))
        v_i minimizes F_i(v) + lam/2 |v - u_i|^2, from u_i

    Communication: down u_i, up v_i. Client state: none beside v_i, the personal model. Otherwise as in `fedamp`.

    Args:
        lam: The paper's λ, divided by its α_k (default 1).
        self_weight: s, the weight of the own model (default .5).
        sigma: The paper's σ (default 25).
        start_from: Whether a client starts from the "mixture" u_i, or its "own" model v_i.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021. arXiv:2007.03797
    """
    return _train_towards_mixture(cosine_weights(self_weight, sigma), lam, start_from, training)


def _train_towards_mixture(weigh: PeerWeights, stiffness: float, start_from: Start, training: Training) -> Algorithm:
    step = training.get("learning_rate", 0.1) * stiffness
    if training.get("optimizer") is None and isinstance(step, float) and step >= 2:
        warnings.warn(
            f"lam: the learning rate times the weight of the mixture is {step:g}. Keep it below 2, or models diverge.",
            stacklevel=3,
        )
    local_update = sgd(**training)
    return Algorithm(
        objective=(cross_entropy(), proximal(stiffness)),
        local_update=from_own_model(local_update) if start_from == "own" else local_update,
        start=peer_mixture(weigh),
        reports={"models": no_report},
        published={"models": latest_models()},
        aggregator=mean("uniform"),
        personalize=own_peer_model,
    )
