"""FedAS."""

from typing import Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm, Weighting
from fedjax_het.client.local_updates import LearningRate, Training, sgd
from fedjax_het.client.measures import gradient_trace
from fedjax_het.client.memories import last_model
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.personalization import last_own_model
from fedjax_het.client.starts import aligned_body
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingName, by_report
from fedjax_het.sharing import HEAD, personal
from fedjax_het.validation import Count, NonNegative, refuse_without_effect, validate_arguments


@validate_arguments
def fedas(
    alignment_rate: LearningRate = 0.01,
    alignment_batch: Count = 16,
    *,
    align: bool = True,
    per: Literal["batch", "example"] = "batch",
    server_learning_rate: NonNegative = 1.0,
    weighting: Literal["trace"] | WeightingName | Weighting = "trace",
    **training: Unpack[Training],
) -> Algorithm:
    """FedAS: align the received body, and weigh clients by Fisher traces.

        b_i <- one epoch of SGD on sum_c 1/(n_c d) sum_{y = c} |b(x) - c_ic|^2, from the received b;
        (b_i, h_i) <- SGD(F_i, start at (b_i, h_i));   b <- b + eta_g sum_i p_i (b_i - b)
        p_i = tr_i / sum_j tr_j,   tr_i = sum over batches of |g(b_i, h_i)|^2
        c_ic: mean features of class c under the client's last model

    Communication: down b, up b_i - b and tr_i. Client state: the head, and its last model. The personal model is the
    last model; of a client that has not trained, the received body with its own head.

    Setting: CIFAR-100: SGD .005, batch 16, 5 epochs, 40 rounds, alignment at .01 in batches of 16.
    Differences from the authors' code: it aligns the server's model in place, one client after the other, so that each
    starts from the result of the one before; clients with less than a batch are not aligned. With align=False and
    weighting="samples" this is `fedper`.

    Args:
        alignment_rate: Learning rate of the alignment (default .01).
        alignment_batch: Batch size of the alignment (default 16).
        align: Whether the body is aligned.
        per: Whether squared gradients of the "batch" (code) or of each "example" are summed.
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "trace" (p_i above), "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: An option has no effect beside the others, or a number is out of range.

    References:
        Yang, Huang and Ye, FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024; code
        xiyuanyang45/FedAS.
    """
    if not align:
        refuse_without_effect(fedas, "with align=False", alignment_rate=alignment_rate, alignment_batch=alignment_batch)
    if weighting != "trace":
        refuse_without_effect(fedas, "without weighting='trace'", per=per)
    local_update = sgd(**training)
    reports = {"trace": gradient_trace(local_update.batch_size, per)} if weighting == "trace" else {}
    shuffle = training.get("shuffle", True)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=local_update,
        start=aligned_body(alignment_rate, alignment_batch, shuffle=shuffle) if align else None,
        memory={"own": last_model()},
        reports=reports,
        aggregator=mean(by_report("trace") if weighting == "trace" else weighting),
        sharing=personal(HEAD),
        server_optimizer=optax.sgd(server_learning_rate),
        personalize=last_own_model,
    )
