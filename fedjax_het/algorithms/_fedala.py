"""FedALA."""

from collections.abc import Sequence
from typing import Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.adaptive_aggregation import from_mixture, kept_mixture, learned_mixture, mixed_start
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.memories import last_model
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.personalization import last_own_model
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import HEAD
from fedjax_het.validation import Count, Fraction, NonNegative, validate_arguments


@validate_arguments
def fedala(
    chosen: Sequence[str] = (HEAD,),
    rate: NonNegative = 1.0,
    share: Fraction = 0.8,
    *,
    threshold: NonNegative = 0.1,
    window: Count = 10,
    max_passes: Count = 100,
    evaluated: Literal["trained", "start"] = "trained",
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedALA: mix the received and the own head by learned weights per entry.

        start_i = v_i + (w - v_i) a_i in the chosen leaves, w in all others;   v_i = SGD(F_i, start at start_i)
        before, on batches of a random piece of the examples:  a_i <- clip(a_i - eta g(start_i) (w - v_i), 0, 1)
        w <- w + eta_g sum_i p_i (v_i - w),   p_i = n_i / sum_j n_j

    Communication: same as FedAvg. Client state: v_i, a full model, and a_i, which is 1 at first. The personal model is
    v_i; of a client that has not trained, the server's model.

    One pass over the piece is made in each round; the first time, passes are repeated until the loss settles. While w =
    v_i, nothing is learned. With rate = 0 this is FedAvg.
    Setting: eta 1, the last layer or two, 80 % of the examples, SGD .005, batch 10, 1 epoch, 20 clients in all rounds.
    Differences from the authors' code: it learns a_i and replaces v_i by the start at all clients in every round, asked
    or not, and evaluates the start; it tests w = v_i by a sum over the first leaf; its first repetition has no limit.

    Args:
        chosen: Patterns of the parameters that are mixed, the paper's p last layers; default the head.
        rate: The paper's η (default 1).
        share: The share of the training examples in the piece, the paper's s (default .8).
        threshold: The loss has settled when its standard deviation is below this (default .1).
        window: The number of passes over which it is taken (default 10).
        max_passes: The maximum number of passes (default 100).
        evaluated: The personal model: "trained" (v_i), or "start", the start that the client would have now.
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: No parameter matches `chosen`, or a number is out of range.

    References:
        Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023.
        arXiv:2212.01197; code TsingZ0/FedALA.
    """
    local_update = sgd(**training)
    mix = learned_mixture(chosen, rate, share, local_update.batch_size, threshold, window, max_passes)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=from_mixture(local_update, mix),
        memory={"own": last_model(), "mixture": kept_mixture(chosen)},
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
        personalize=mixed_start(mix) if evaluated == "start" else last_own_model,
    )
