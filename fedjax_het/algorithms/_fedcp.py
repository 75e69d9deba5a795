"""FedCP."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, refuse_only, sgd
from fedjax_het.client.objectives import cross_entropy, representation_discrepancy
from fedjax_het.client.starts import head_context, with_merged_head
from fedjax_het.models import with_gate
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import HEAD, personal
from fedjax_het.validation import NonNegative, Positive, may_be_nonzero, validate_arguments


@validate_arguments
def fedcp(
    lam: Annotated[NonNegative, LogUniform(0.1, 10.0)] = 5.0,
    temperature: Positive = 1.0,
    *,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedCP: a gate divides each feature between a personal and a generic head.

        min  CE(h_i(z a) + g(z (1 - a))) + lam MMD(z, z_received),   generic head g fixed
        (a, 1 - a) = softmax(relu(norm(W (z u_i) + b)) + Gumbel noise),   u_i: the direction of the sum of h_i's weights
        extractor, W, b <- sum_i p_i theirs,   g <- sum_i p_i (h_i + g)/2,   p_i = n_i / sum_j n_j

    Communication: same as FedAvg, with the gate [feature, 2 feature]. Client state: h_i, at first a copy of g. The
    personal model is the server's extractor, gate and g with h_i.

    u_i is that of the client's head when a round begins. Shares are drawn in training, and without noise in evaluation.
    Setting: SGD .005, batch 10, lam 5, 20 clients, all in every round.
    Differences from the authors' code: clients that did not take part keep an old g and gate there; u_i is random until
    the end of a client's first round; and personal models are evaluated with noise.

    Args:
        lam: The paper's λ (default 5, the script's; 0 is the code's default).
        temperature: Temperature of the shares (default 1).
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: `only` is given, features are maps, the head is not a dense layer, or a number is out of range.

    References:
        Zhang et al., FedCP: Separating Feature Information for Personalized Federated Learning via Conditional Policy,
        KDD 2023. arXiv:2307.01217; code TsingZ0/FedCP.
    """
    refuse_only("FedCP trains all but the generic head", training)
    return Algorithm(
        objective=(cross_entropy(), *((representation_discrepancy(lam),) if may_be_nonzero(lam) else ())),
        local_update=with_merged_head(sgd(**training, only=f"!{HEAD}")),
        adapt=with_gate(temperature),
        sharing=personal("params/personal_head/*", "condition/*"),
        start=head_context,
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
        personalize=head_context,
    )
