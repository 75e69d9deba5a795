"""FLoRA, FlexLoRA and HetLoRA: clients with low-rank adapters of different ranks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Unpack

import jax.numpy as jnp

from fedjax_het.algorithm import Aggregator, Algorithm, StartRule
from fedjax_het.client.local_updates import Training, sgd, split_training
from fedjax_het.client.low_rank import cut_adapters, fresh_adapters, self_pruning, tail_penalty, truncated_adapters
from fedjax_het.client.memories import result
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.errors import InputError
from fedjax_het.models import AdapterSettings, lora, server_kernels
from fedjax_het.server.aggregators import mean_by_product_norms, merged_products
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.types import Model
from fedjax_het.validation import Count, NonNegative, OpenFraction, Positive, validate_arguments


class AdapterTraining(Training, AdapterSettings, total=False):
    """The settings of local training, see `local_updates.sgd`, and of the adapters, see `models.lora`."""


@validate_arguments
def flora(
    ranks: Sequence[Count] = (8,),
    alpha: Positive = 16.0,
    weighting: WeightingOrName = "samples",
    **options: Unpack[AdapterTraining],
) -> Algorithm:
    """FLoRA: add the products of fresh adapters of any ranks to the weights.

        A_i random, B_i = 0,   (A_i, B_i) = SGD(F_i),   W <- W + sum_i p_i s_i A_i B_i,   s_i = alpha / r_i

    The sum is the product of the stacked A_i and B_i. It is exact for any ranks.

    Communication: up A_i, B_i and the head; down W, where the paper sends the stack of all adapters, of rank sum_i r_i.
    Client state: none. The server needs every client's A and B.

    Setting: r = 16, alpha = 32 or the ranks 64, 32, 16, 16, 8, 8, 4, 4, 4, 4 on the query and value projections of
    LLaMA-7B, Adam with decoupled decay 3e-4, batch 128, 3 epochs, 10 clients.
    Deviations from the code: A and B are identified by name, while the code compares shapes with the ranks; the sum
    includes each client's s_i, while the code uses one rank and alpha for the stack.

    Args:
        ranks: Client i has the rank ranks[i mod len(ranks)] (default 8 for all).
        alpha: Scale alpha (default 16).
        weighting: Client weights p_i: "samples" (n_i / n, the paper's) or "uniform".
        options: Settings of local training, see `local_updates.sgd`, and of the adapters, see `models.lora`.

    References:
        Wang, Shen, He, Sun, Wang, Lyu and Li, FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous
        Low-Rank Adaptations, NeurIPS 2024. arXiv:2409.05976; code ATP-1010/FederatedLLM.
    """
    algorithm = _compose(ranks, alpha, options, merged_products(ranks, alpha, weighting), fresh_adapters(ranks, alpha))
    let_change = server_kernels(options.get("targets", "*"))
    return replace(algorithm, adapt=lambda model: let_change(algorithm.adapt(model)))


@validate_arguments
def flexlora(
    ranks: Sequence[Count] = (8,),
    alpha: Positive = 16.0,
    weighting: WeightingOrName = "samples",
    **options: Unpack[AdapterTraining],
) -> Algorithm:
    """FlexLoRA: decompose the mean product for clients of different ranks.

        M = sum_i p_i s_i A_i B_i = U S V^T,   s_i = alpha / r_i
        client i: A_i = U[:, :r_i],   B_i = S[:r_i] V[:, :r_i]^T / s_i,   (A_i, B_i) <- SGD(F_i)

    Communication: up A_i, B_i and the head; down the approximation of the largest rank, where a client would need only
    the first r_i directions. Client state: none. The server needs every client's A and B.

    Setting: alpha = 16, dropout .05 on all projections of LLaMA, batch 4, 1 epoch, four types of clients.
    The decomposition is part of the round's program: QR of the stacked factors, then an SVD of their small product.
    Deviation from the code: in the first round, clients truncate common A and B, while the code draws them per client.

    Args:
        ranks: Client i has the rank ranks[i mod len(ranks)] (default 8 for all).
        alpha: Scale alpha (default 16, as in the code).
        weighting: As in `flora`.
        options: As in `flora`.

    References:
        Bai, Chen, Qian, Yao and Li, Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
        Resources, NeurIPS 2024. arXiv:2402.11505; code alibaba/FederatedScope, branch FlexLoRA.
    """
    aggregator = merged_products(ranks, alpha, weighting, decompose=True)
    return _compose(ranks, alpha, options, aggregator, truncated_adapters(ranks, alpha))


@validate_arguments
def hetlora(
    ranks: Sequence[Count] = (8,),
    alpha: Positive = 16.0,
    penalty: NonNegative | None = None,
    decay: OpenFraction | None = 0.99,
    *,
    norms: Literal["layer", "model"] = "layer",
    weighting: WeightingOrName = "samples",
    **options: Unpack[AdapterTraining],
) -> Algorithm:
    """HetLoRA: average adapters of different ranks, weighted by their norms.

        client i: A_i = A[:, :r_i],   B_i = B[:r_i],   (A_i, B_i) <- SGD(F_i + lambda sum_layers |A[:, c:]| |B[c:]|)
        r_i <- max(1, c)   if sum_layers |A[:, c:]| |B[c:]| has shrunk,   c = floor(gamma r_i)
        A <- sum_i w_i A_i,   B <- sum_i w_i B_i,   w_i = |A_i B_i| / sum_j |A_j B_j|

    Beyond a client's rank, A_i and B_i are zero and count as such in the mean. The scale is alpha / max_i r_i for all
    clients: with alpha / r_i, cutting a server's adapter would change it.

    Communication: as `fedit` at the largest rank here, of which a client sends and needs the first r_i directions.
    Client state: the rank r_i, unless decay is None. The server needs every client's A and B.

    Setting: ranks between 5 and 50. No code by the authors was found, and the defaults of penalty and decay are not
    taken from the paper. A client that takes part for the first time starts from B = 0 or from the others' B; in the
    first case it is never pruned in that round.

    Args:
        ranks: Client i begins with the rank ranks[i mod len(ranks)] (default 8 for all).
        alpha: Scale alpha (default 16).
        penalty: Weight lambda of the penalty of the directions that pruning would remove (default None, .01 with a
            decay and none without).
        decay: Factor gamma of pruned ranks (default .99); with r_i = 1, c is 0 and the penalty is of all directions.
            None: ranks stay as they are.
        norms: Whether weights are computed for each "layer" (default), or from norms summed over the "model".
        weighting: Client weights p_i of the head: "samples" (n_i / n) or "uniform".
        options: As in `flora`.

    Raises:
        InputError: A number is out of range, or there is a penalty without a decay.

    References:
        Cho, Liu, Xu, Fahrezi and Joshi, Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models,
        EMNLP 2024. arXiv:2401.06432. No code by the authors was found.
    """
    aggregator = mean_by_product_norms(norms, weighting)
    algorithm = _compose(ranks, alpha, options, aggregator, cut_adapters(ranks), own_scale=False)
    if decay is None:
        if penalty is not None:
            raise InputError("penalty: it is of directions to prune, and decay=None prunes none. Omit it.")
        return algorithm
    return replace(
        algorithm,
        objective=(*algorithm.objective, tail_penalty(ranks, 0.01 if penalty is None else penalty, decay)),
        local_update=self_pruning(algorithm.local_update, ranks, decay),
        memory={"rank": result("rank", lambda variables: jnp.asarray(max(ranks), jnp.int32))},
    )


def _compose(
    ranks: Sequence[int],
    alpha: float,
    options: AdapterTraining,
    aggregator: Aggregator,
    start: StartRule,
    *,
    own_scale: bool = True,
) -> Algorithm:
    adapters, training = split_training(options)

    def adapt(model: Model) -> Model:
        return lora(max(ranks), alpha, own_scale=own_scale, **adapters)(model)

    return Algorithm(
        objective=(cross_entropy(),), local_update=sgd(**training), aggregator=aggregator, adapt=adapt, start=start
    )
