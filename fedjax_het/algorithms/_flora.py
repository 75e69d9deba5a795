"""FLoRA and FlexLoRA: clients with low-rank adapters of different ranks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from fedjax_het.algorithm import Aggregator, Algorithm, StartRule
from fedjax_het.client.local_updates import Training, sgd, split_training
from fedjax_het.client.low_rank import fresh_adapters, truncated_adapters
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.models import AdapterSettings, lora, server_kernels
from fedjax_het.server.aggregators import merged_products
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.types import Model
from fedjax_het.validation import Count, Positive, validate_arguments


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

    The sum is the product of the stacked A_i and B_i: nothing is approximated, whatever the ranks.

    Communication: up A_i, B_i and the head; down W here, and in the paper the stack of all adapters, of rank sum_i r_i,
    to all clients. Client state: none. The server needs every client's A and B.

    Setting: r = 16, alpha = 32 or the ranks 64, 32, 16, 16, 8, 8, 4, 4, 4, 4 on the query and value projections of
    LLaMA-7B, Adam with decoupled decay 3e-4, batch 128, 3 epochs, 10 clients.
    Deviations from the code: A and B are told apart by name, where the code compares shapes with the ranks; each
    client's s_i is in the sum, where the code declares one rank and alpha for the stack.

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

    Communication: up A_i, B_i and the head; down the approximation at the largest rank here, of which a client needs
    the first r_i directions. Client state: none. The server needs every client's A and B.

    Setting: alpha = 16, dropout .05 on all projections of LLaMA, batch 4, 1 epoch, four types of clients.
    The decomposition is part of the round's program, by QR of the stacked factors and an SVD of their small product.
    Deviation from the code: A and B of the first round are cut from common ones, where the code draws them per client.

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


def _compose(
    ranks: Sequence[int], alpha: float, options: AdapterTraining, aggregator: Aggregator, start: StartRule
) -> Algorithm:
    adapters, training = split_training(options)

    def adapt(model: Model) -> Model:
        return lora(max(ranks), alpha, own_scale=True, **adapters)(model)

    return Algorithm(
        objective=(cross_entropy(),), local_update=sgd(**training), aggregator=aggregator, adapt=adapt, start=start
    )
