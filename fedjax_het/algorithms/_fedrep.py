"""FedRep and FedBABU: body and head are trained separately."""

from typing import Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, refuse_only, sequential, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.personalization import fine_tuned
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import HEAD, personal, share_only
from fedjax_het.validation import CountOrZero, NonNegative, refuse_without_effect, validate_arguments

BODY = f"!{HEAD}"
PARTS = {"full": None, "head": HEAD, "body": BODY}


@validate_arguments
def fedrep(
    head_epochs: CountOrZero = 10,
    head_learning_rate: NonNegative | None = None,
    fine_tune_epochs: CountOrZero = 0,
    *,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedRep: train the personal head first, then the shared body.

        h_i <- head_epochs of SGD on h, body b fixed;   b_i <- SGD on b from the received b, head h_i fixed
        b <- b + eta_g sum_i p_i (b_i - b),   p_i = n_i / sum_j n_j

    Communication: down b, up b_i - b and n_i. Client state: the head; before its first round, the common initial
    head. The personal model is the server's current b with the client's h_i. The settings of local training apply
    to the body and to the head, except that the head has its own number of epochs and learning rate. Both parts
    have their own optimizer state, reset in each round. A part that is not being trained stays unchanged, without
    momentum or decay. Batch statistics belong to the layer that has them, and are updated in both phases.

    Setting: SGD .01, momentum .5, batch 10, 10 head epochs and 1 body epoch (CIFAR-10, two classes per client), or 10
    and 5; 100 rounds, 10 of 100 clients. With head_epochs=0 and a common head this is `fedbabu` without fine-tuning.
    Deviations: in the code, new clients start with the mean head of the last cohort, because its storage
    is shared, and before PyTorch 2, momentum and decay still change the fixed head. Neither is reproduced.

    Args:
        head_epochs: Epochs of the head, before the body (default 10). 0: the head is not trained.
        head_learning_rate: Learning rate of the head. None: same as the body.
        fine_tune_epochs: Epochs of the head alone before a client's personal model is evaluated; the result is
            discarded (10 after the last round in the authors' script).
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" or "uniform" (the authors' CIFAR script).
        training: Settings of local training of the body, see `local_updates.sgd`.

    Raises:
        InputError: `only` is given, head_learning_rate is combined with another optimizer, or a number is out of range.

    References:
        Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021.
        arXiv:2102.07078; code lgcollins/FedRep, PFLlib (a third party).
    """
    refuse_only("FedRep trains the head and then the body", training)
    if not head_epochs and not fine_tune_epochs:
        refuse_without_effect(fedrep, "without epochs of the head", head_learning_rate=head_learning_rate)
    head: Training = {**training, "epochs": head_epochs, "only": HEAD}
    head.pop("steps", None)
    if head_learning_rate is not None:
        if isinstance(head.get("optimizer"), optax.GradientTransformation):
            raise InputError(
                "head_learning_rate: the given optimizer has its own learning rate. Remove one of the two."
            )
        head["learning_rate"] = head_learning_rate
    last_head: Training = {**head, "epochs": fine_tune_epochs}
    local_update = sgd(**training, only=BODY)
    if head_epochs:
        local_update = sequential(sgd(**head), local_update)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=local_update,
        aggregator=mean(weighting),
        sharing=personal(HEAD),
        server_optimizer=optax.sgd(server_learning_rate),
        personalize=fine_tuned(sgd(**last_head)) if fine_tune_epochs else None,
    )


@validate_arguments
def fedbabu(
    part: Literal["body", "head"] = "body",
    fine_tune_epochs: CountOrZero = 5,
    fine_tune_learning_rate: NonNegative = 1e-3,
    fine_tune_part: Literal["full", "head", "body"] = "full",
    *,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedBABU: train the body with a fixed random head, then fine-tune.

        b_i = SGD on b from the received b, head h_0 fixed;   b <- b + eta_g sum_i p_i (b_i - b)
        personal model of client i:  (b, h)_i = fine_tune_epochs of SGD from (b, h_0)

    Communication: down b, up b_i - b and n_i. Client state: the fixed head h_0, the same for all clients. The
    personal model is fine-tuned anew for every evaluation. The fixed head stays unchanged, without momentum or
    decay.

    Setting: MobileNet on CIFAR-100, SGD .1, momentum .9, batch 50; 320 rounds of 1 epoch, 80 of 4 or 32 of 10; rate
    divided by ten after a half and three quarters of the rounds, learning_rate_schedule=steps((160, 240)) of 320.
    Deviations from the code: clients are weighted by their numbers of examples ("uniform" in the code), and the last
    model is fine-tuned, not the one with the best test accuracy. The server's training on its own data is omitted.

    Args:
        part: Part that is trained and sent: "body", or "head" (an ablation in the authors' code).
        fine_tune_epochs: Epochs before a personal model is evaluated (default 5). 0 evaluates the global model.
        fine_tune_learning_rate: Learning rate of fine-tuning (default 1e-3); momentum, weight_decay, batch_size and
            shuffle are those of training.
        fine_tune_part: Part that is fine-tuned: "full", "head" or "body".
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" or "uniform" (the authors' code).
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: `only` is given, or a number is out of range.

    References:
        Oh, Kim and Yun, FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022.
        arXiv:2106.06042; code jhoon-oh/FedBABU.
    """
    refuse_only(f"FedBABU trains the {part}", training)
    if not fine_tune_epochs:
        options = {"fine_tune_learning_rate": fine_tune_learning_rate, "fine_tune_part": fine_tune_part}
        refuse_without_effect(fedbabu, "with fine_tune_epochs=0", **options)
    fine_tuning: Training = {**training, "learning_rate": fine_tune_learning_rate}
    fine_tuning |= {"epochs": fine_tune_epochs, "only": PARTS[fine_tune_part]}
    for setting in ("steps", "optimizer", "betas", "learning_rate_schedule"):
        fine_tuning.pop(setting, None)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training, only=PARTS[part]),
        aggregator=mean(weighting),
        sharing=personal(HEAD) if part == "body" else share_only(HEAD),
        server_optimizer=optax.sgd(server_learning_rate),
        personalize=fine_tuned(sgd(**fine_tuning)) if fine_tune_epochs else None,
    )
