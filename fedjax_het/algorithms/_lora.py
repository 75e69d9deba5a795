"""FedIT, FFA-LoRA, FedSA-LoRA, RoLoRA, FedEx-LoRA, LoRA-FAIR and FedDPA: low-rank adapters of a frozen model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, Unpack

from fedjax_het.algorithm import Algorithm, LocalUpdate
from fedjax_het.client.local_updates import (
    Training,
    alternating,
    delayed,
    refuse_only,
    sequential,
    sgd,
    split_training,
)
from fedjax_het.client.low_rank import adapters_mixed_by_input, at_mixture, mixed_adapters
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.models import LowRank, dual_lora, freeze, lora, lora_scale, server_kernels
from fedjax_het.server.aggregators import mean, mean_with_corrected_b, mean_with_exact_products
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.sharing import HEAD, personal
from fedjax_het.validation import CountOrZero, Fraction, NonNegative, validate_arguments


class LowRankTraining(Training, LowRank, total=False):
    """The settings of local training, see `local_updates.sgd`, and of the adapters, see `models.lora`."""


@validate_arguments
def fedit(weighting: WeightingOrName = "samples", **options: Unpack[LowRankTraining]) -> Algorithm:
    """FedIT: train low-rank adapters of a frozen model, and average A and B.

        y = x W + s (x A) B,   (A_i, B_i) = SGD(F_i, start at (A, B)),   A <- sum_i p_i A_i,   B <- sum_i p_i B_i

    The product of the means is not the mean of the products: for two clients with (A, B) and (-A, -B), whose products
    are equal, it is 0. FFA-LoRA, RoLoRA and FedEx-LoRA avoid this.

    Communication: A, B and the head, down and up. Client state: none. Equals `fedavg` on `fh.models.lora(...)(model)`.

    Setting: r = 16, alpha = 16, dropout .05 on the query projections of LLaMA-7B, Adam with decoupled decay 3e-4, batch
    64, 10 epochs, 10 of 100 clients, Dolly by category.

    Args:
        weighting: Client weights p_i: "samples" (n_i / n, the paper's) or "uniform".
        options: Settings of local training, see `local_updates.sgd`, and of the adapters, see `models.lora`.

    References:
        Zhang, Vahidian, Kuo et al., Towards Building the Federated GPT: Federated Instruction Tuning, ICASSP 2024.
        arXiv:2305.05644; code JayZhang42/FederatedGPT-Shepherd.
    """
    adapters, training = split_training(options)
    return _compose(sgd(**training), weighting, adapters)


@validate_arguments
def ffalora(weighting: WeightingOrName = "samples", **options: Unpack[LowRankTraining]) -> Algorithm:
    """FFA-LoRA: FedIT with a frozen random A, so that averaging is exact.

        B_i = SGD(F_i, start at B),   B <- sum_i p_i B_i,   sum_i p_i A B_i = A B

    The model is linear in B, so noise that is added to B stays Gaussian in the weights A B.

    Communication: B and the head, half of FedIT's adapters. Client state: none.

    Setting: r = 8, RoBERTa-large, 3 clients. A larger alpha than for FedIT, or a larger learning rate, compensates for
    the smaller number of trained parameters.

    Args:
        weighting: As in `fedit`.
        options: As in `fedit`.

    References:
        Sun, Li, Li and Ding, Improving LoRA in Privacy-preserving Federated Learning, ICLR 2024. arXiv:2403.12313. No
        code by the authors was found.
    """
    adapters, training = split_training(options)
    algorithm = _compose(sgd(**training), weighting, adapters)
    return replace(algorithm, adapt=lambda model: freeze("*/lora_a")(algorithm.adapt(model)))


@validate_arguments
def fedsalora(
    own_head: bool = True, weighting: WeightingOrName = "samples", **options: Unpack[LowRankTraining]
) -> Algorithm:
    """FedSA-LoRA: share A, and keep B on the client.

        (A_i, B_i) = SGD(F_i, start at (A, B_i)),   A <- sum_i p_i A_i;   client i has W + s A B_i

    Communication: A and, without own_head, the head, down and up. Client state: B and, with own_head, the head. A
    client that has never taken part has B = 0.

    Setting: r = 8, alpha = 16, dropout .05 on the query and value projections of RoBERTa-large, 3 clients, SGD, 10
    steps of 128 examples per round, 1,000 rounds; the authors now recommend a learning rate of .005.

    Args:
        own_head: Whether the head is personal, too (default True, as for the paper's classification tasks).
        weighting: As in `fedit`.
        options: As in `fedit`.

    References:
        Guo, Zeng, Wang, Fan, Wang and Qu, Selective Aggregation for Low-Rank Adaptation in Federated Learning, ICLR
        2025. arXiv:2410.01463; code Pengxin-Guo/FedSA-LoRA.
    """
    adapters, training = split_training(options)
    kept = ("*/lora_b", *([HEAD] if own_head else []))
    return replace(_compose(sgd(**training), weighting, adapters), sharing=personal(*kept))


@validate_arguments
def rolora(weighting: WeightingOrName = "samples", **options: Unpack[LowRankTraining]) -> Algorithm:
    """RoLoRA: train B and A in alternate rounds; each mean is exact.

        rounds 0, 2, ...:  B_i = SGD(F_i, start at B),   B <- sum_i p_i B_i;   rounds 1, 3, ...: the same with A

    B is first, because A has no gradient while B is 0. The head is trained in all rounds. Weight decay and momentum do
    not change the factor that is not trained.

    Communication: same as `fedit`; the factor that is not trained is sent as zeros, so half would suffice. Client
    state: none.

    Setting: r = 4, RoBERTa-large, 3 to 50 clients.

    Args:
        weighting: As in `fedit`.
        options: As in `fedit`.

    References:
        Chen, Guo, Ju, Dalal, Zhu and Khisti, Robust Federated Finetuning of Foundation Models via Alternating
        Minimization of LoRA, 2024. arXiv:2409.02346. No code by the authors was found.
    """
    adapters, training = split_training(options)
    refuse_only("RoLoRA trains the two factors in turn", training)
    even, odd = (sgd(**training, only=f"!*/{resting}") for resting in ("lora_a", "lora_b"))
    return _compose(alternating(even, odd), weighting, adapters)


@validate_arguments
def fedexlora(weighting: WeightingOrName = "samples", **options: Unpack[LowRankTraining]) -> Algorithm:
    """FedEx-LoRA: FedIT with the averaging error added to the frozen weights.

        A <- sum_i p_i A_i,   B <- sum_i p_i B_i,   W <- W + s sum_i p_i (A_i - A) (B_i - B)

    After each round, clients start from W + sum_i p_i s A_i B_i exactly.

    Communication: up A, B and the head; down the same and W, where the paper sends the change of W as factors of rank
    (m - 1) r for m clients. Client state: none. The server needs every client's A and B, so stages of the uplink that
    show it only sums raise an error.

    Setting: r = 4, alpha = 8, dropout .1 on the query and value projections of RoBERTa-base, 3 clients, Adam with
    decoupled decay 1e-3, batch 128, 3 epochs, 50 rounds.
    Deviations from the code: clients are weighted by their numbers of examples ("uniform" in the code), and the error
    is added directly, while the code adds its transpose for layers that store their weight as [out, in].

    Args:
        weighting: As in `fedit`.
        options: As in `fedit`.

    References:
        Singhal, Ponkshe and Vepakomma, FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of
        Foundation Models, ACL 2025. arXiv:2410.09432; code CERT-Lab/fedex-lora.
    """
    adapters, training = split_training(options)
    aggregator = mean_with_exact_products(lora_scale(**_scale_of(adapters)), weighting)
    algorithm, targets = _compose(sgd(**training), weighting, adapters), adapters.get("targets", "*")
    return replace(
        algorithm, aggregator=aggregator, adapt=lambda model: server_kernels(targets)(algorithm.adapt(model))
    )


@validate_arguments
def lorafair(
    penalty: NonNegative = 0.01,
    similarity: Literal["squared_error", "cosine"] = "squared_error",
    weighting: WeightingOrName = "samples",
    **options: Unpack[LowRankTraining],
) -> Algorithm:
    """LoRA-FAIR: FedIT with the mean B corrected towards the mean product.

        A <- sum_i p_i A_i,   B <- sum_i p_i B_i + D,   D = argmin |sum_i p_i A_i B_i - A (B + D)|^2 + lambda |D|^2

    Communication: same as `fedit`. Client state: none. The server needs every client's A and B.

    The paper does not specify the measure of similarity. The default is the squared error, for which D has a closed
    form; see `aggregators.mean_with_corrected_b` for the cosine.

    Args:
        penalty: Penalty lambda of the correction (default .01, as in the paper).
        similarity: "squared_error" or "cosine".
        weighting: As in `fedit`.
        options: As in `fedit`.

    References:
        Bian, Wang, Zhang and Xu, LoRA-FAIR: Federated LoRA Fine-Tuning with Aggregation and Initialization Refinement,
        ICCV 2025. arXiv:2411.14961. No code by the authors was found.
    """
    adapters, training = split_training(options)
    algorithm = _compose(sgd(**training), weighting, adapters)
    return replace(algorithm, aggregator=mean_with_corrected_b(penalty, similarity, weighting))


@validate_arguments
def feddpa(
    mix: Fraction = 0.5,
    num_references: CountOrZero = 5,
    *,
    weighting: WeightingOrName = "uniform",
    **options: Unpack[LowRankTraining],
) -> Algorithm:
    """FedDPA: average an adapter as FedIT, and train another per client.

        from round 1 on:  (A'_i, B'_i) <- SGD(F_i of W + (1 - a) s A B + a s A' B', start at (A'_i, B'_i)), A, B fixed
        then:  (A_i, B_i) = SGD(F_i of W + s A B, start at (A, B)),   A <- sum_i p_i A_i,   B <- sum_i p_i B_i
        input x of client i:  W + (1 - a c) s A B + a c s A'_i B'_i,   c = mean_j cos(h(x), h(x_j))

    h are the features with W + s A'_i B'_i, and x_j examples of the client's training data.

    Communication: A, B and the head, down and up. Client state: A'_i and B'_i; a client that has never taken part after
    round 0 has B'_i = 0. Cost: twice the steps of FedIT, and two forward passes per prediction.

    Setting: r = 8, alpha = 16 on the query and value projections of LLaMA-7B, 8 clients with a task each, 20 rounds, 10
    epochs, equal weights.
    Deviations from the code: h is the mean over positions, where the features have any, and the last token's in the
    code; a client keeps its own adapter, where the code restarts it unless the client also took part in the round
    before; all clients' A' begin equal.

    Args:
        mix: Share a of the client's own adapter (default .5). 0: FedIT, and an own adapter that is not used.
        num_references: The number of examples x_j, drawn with replacement (default 5). 0: c = 1, a constant mixture.
        weighting: Client weights p_i: "uniform" (default, as in the code) or "samples" (n_i / n).
        options: As in `fedit`.

    References:
        Yang, Long, Shen, Jiang and Blumenstein, Dual-Personalizing Adapter for Federated Foundation Models, NeurIPS
        2024. arXiv:2403.19211; code Lydia-yang/FedDPA.
    """
    adapters, training = split_training(options)
    refuse_only("FedDPA trains the own adapter and then the common one", training)
    common, own = sgd(**training, only="!*/local_?"), sgd(**training, only="*/local_?")
    scale = lora_scale(**_scale_of(adapters))
    return replace(
        _compose(common, weighting, adapters),
        local_update=sequential(delayed(at_mixture(own, mix, scale)), at_mixture(common, 0.0, scale)),
        adapt=dual_lora(**adapters),
        sharing=personal("*/local_a", "*/local_b"),
        personalize=(
            adapters_mixed_by_input(mix, scale, num_references) if num_references else mixed_adapters(mix, scale)
        ),
    )


def _scale_of(adapters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: adapters[name] for name in ("rank", "alpha", "rank_stabilized") if name in adapters}


def _compose(local_update: LocalUpdate, weighting: WeightingOrName, adapters: Mapping[str, Any]) -> Algorithm:
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=local_update,
        aggregator=mean(weighting),
        adapt=lora(**adapters),
    )
