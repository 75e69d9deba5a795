"""FedPer and LG-FedAvg: the head or the body of the model is personal."""

from collections.abc import Sequence
from typing import Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import HEAD, Sharing, personal, share_only
from fedjax_het.validation import NonNegative, validate_arguments


@validate_arguments
def fedper(
    head: Sequence[str] = (HEAD,),
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedPer: train a shared body with personal heads.

        (b_i, h_i) = SGD(F_i, start at (b, h_i)),   b <- b + eta_g sum_i p_i (b_i - b),   p_i = n_i / sum_j n_j

    Communication: down b, up b_i - b and n_i: FedAvg's without the head. Client state: the head; before its first
    round, the common initial head. The personal model is the server's current b with the client's h_i, also in
    rounds without participation.

    With no head, this is FedAvg: `replace(fedper(), sharing=share_all)`.
    No code by the authors was found. Two other repositories implement FedPer; their deviations are not reproduced.
    FedRep's repository gives new clients the mean head of the last cohort, because its storage is shared; FedBABU's
    discards all trained heads and keeps the initial ones. FedRep's also trains the heads once more before evaluation:
    `replace(fedper(), personalize=fine_tuned(sgd(epochs=10, only=HEAD)))`.

    Args:
        head: Patterns of the leaves that are personal, the paper's personalization layers: ("params/classifier/*",);
            with blocks that have batch statistics, "*/block_3/*".
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" (the paper's p_i) or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Arivazhagan et al., Federated Learning with Personalization Layers, 2019. arXiv:1912.00818; code
        lgcollins/FedRep, jhoon-oh/FedBABU (third parties).
    """
    return _train_all(personal(*head), server_learning_rate, weighting, training)


@validate_arguments
def lgfedavg(
    head: Sequence[str] = (HEAD,),
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """LG-FedAvg: train a shared head on personal bodies.

        (b_i, h_i) = SGD(F_i, start at (b_i, h)),   h <- h + eta_g sum_i p_i (h_i - h),   p_i = n_i / sum_j n_j

    Communication: down h, up h_i - h and n_i. Client state: the body; before its first round, the common initial
    body. The personal model is the client's b_i with the server's current h.

    Setting: MLP on MNIST, SGD .05, momentum .5, batch 10, 1 epoch, 10 of 100 clients, starting from a model that FedAvg
    trained for 400 to 800 rounds; CIFAR-10: SGD .1, batch 50. `fedper` shares the body instead.
    Deviations from the code: clients are weighted by their numbers of examples ("uniform" in the code); layers are
    selected by name (the authors' list for their CIFAR-10 network puts the dense layers first, so the "last" layers,
    which they share, are the lower ones: `fedper` with all dense layers as head); the last models are evaluated, not
    each client's best by test accuracy. Not reproduced: FedBABU's repository discards the trained bodies, and FedRep's
    gives new clients the mean body of the last cohort.

    Args:
        head: Patterns of the leaves that are shared: ("params/classifier/*",).
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" or "uniform" (the authors' code).
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020.
        arXiv:2001.01523; code pliang279/LG-FedAvg, lgcollins/FedRep (a third party).
    """
    return _train_all(share_only(*head), server_learning_rate, weighting, training)


def _train_all(
    sharing: Sharing, server_learning_rate: float, weighting: WeightingOrName, training: Training
) -> Algorithm:
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        sharing=sharing,
        server_optimizer=optax.sgd(server_learning_rate),
    )
