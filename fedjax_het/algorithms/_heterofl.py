"""HeteroFL, FedRolex and FjORD: clients train sub-networks of different widths."""

from dataclasses import replace
from typing import Literal, Unpack

from fedjax_het.algorithm import Aggregator, Algorithm, GradientRule
from fedjax_het.client.capacities import (
    Assignment,
    Capacities,
    WidthsOrFile,
    assign_widths,
    ordered_dropout,
    own_sub_network,
    with_capacity,
)
from fedjax_het.client.gradients import clipped_gradient, plain_gradient
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import result
from fedjax_het.client.objectives import cross_entropy, restricted_cross_entropy
from fedjax_het.server.aggregators import masked_mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Positive, Seed, validate_arguments

HETEROFL_WIDTHS = (1.0, 0.5, 0.25, 0.125, 0.0625)


@validate_arguments
def heterofl(
    widths: WidthsOrFile = HETEROFL_WIDTHS,
    assignment: Assignment = "fixed",
    width_seed: Seed = 0,
    *,
    scaler: bool = True,
    masks_logits: bool = True,
    clip: Positive | None = None,
    weighting: WeightingOrName = "uniform",
    **training: Unpack[Training],
) -> Algorithm:
    """HeteroFL: a client trains the first p h of the h units of a layer.

        w_i = SGD(F_i at m_i w, start at m_i w),   w <- sum_i a_i m_i w_i / sum_j a_j m_j,   entry by entry

    m_i is 1 for the entries of the client's sub-network, without the head's rows of classes that it has no example of.
    Entries that nobody sends keep their value. In training, outputs of hidden layers are divided by p, and the logits
    of classes that the client lacks are 0 in the cross-entropy.

    Communication: the entries of the sub-network, down and up, about p^2 of the model; the server knows the widths and
    classes of clients. Client state: none. `personal/...` evaluates each client's sub-network. Numbers of examples are
    not used.

    Setting: 100 clients, 10 per round, two classes each, 400 or 800 rounds, CNN with 64, 128, 256 and 512 channels or
    ResNet-18, SGD .1 (.01 for MNIST), momentum .9, weight decay 5e-4, clip 1, batch 10, 5 epochs.
    With widths=(1,) and all classes at every client, HeteroFL is FedAvg with equal weights.
    The code normalizes by static batch norm, a model with norm="static". Deviation: a client's own model takes its
    statistics from the client alone, and batches have up to 256 examples. Norms with running statistics raise an error.

    Args:
        widths: Client i has the width p = widths[i mod len(widths)]; or the path of a CSV file with the columns client,
            width (default 1, 1/2, 1/4, 1/8, 1/16).
        assignment: "fixed", or "dynamic": every client of a round draws one of the widths.
        width_seed: The seed of the draws of "dynamic".
        scaler: Whether outputs of hidden layers are divided by p in training.
        masks_logits: Whether the logits of classes that the client lacks are set to 0 in training.
        clip: Maximum norm of the gradient (1 in the code). None: no clipping.
        weighting: The weights a_i: "uniform" (default, as in the code) or "samples".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: A width is not in (0, 1], the file is malformed, or, before the first round, the model has no
            sub-networks.

    References:
        Diao, Ding and Tarokh, HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous
        Clients, ICLR 2021. arXiv:2010.01264; code dem123456789/HeteroFL-Computation-and-Communication-Efficient-
        Federated-Learning-for-Heterogeneous-Clients.
    """
    capacities = assign_widths(widths, assignment, "first", width_seed)
    return _compose_heterofl(capacities, scaler, masks_logits, clip, weighting, training)


@validate_arguments
def fedrolex(
    widths: WidthsOrFile = HETEROFL_WIDTHS,
    assignment: Assignment = "fixed",
    width_seed: Seed = 0,
    direction: Literal["up", "down"] = "up",
    *,
    scaler: bool = True,
    masks_logits: bool = True,
    clip: Positive | None = None,
    weighting: WeightingOrName = "uniform",
    **training: Unpack[Training],
) -> Algorithm:
    """FedRolex: HeteroFL with sub-networks that roll over the common model.

        round r:  the units r, r + 1, ..., r + ceil(p h) - 1, modulo h, of each hidden layer

    Over h rounds, each unit is in the window equally often. All else is as in `heterofl`.

    Communication: as `heterofl`. Client state: none.

    Setting: 100 clients, 10 per round, widths drawn in every round, ResNet-18, SGD 2e-4, 1 epoch, 3200 rounds.
    Deviations from the code: its windows move down (direction="down"); it weights all leaves except kernels of
    convolutions by counters that change while the cohort is read, so that the order of clients matters, which is not
    reproduced. Static batch norm: see `heterofl`.

    Args:
        widths: As in `heterofl`.
        assignment: As in `heterofl`.
        width_seed: As in `heterofl`.
        direction: "up" (default), or "down": the units -r, ..., -r + ceil(p h) - 1, modulo h, as in the code.
        scaler: As in `heterofl`.
        masks_logits: As in `heterofl`.
        clip: As in `heterofl`.
        weighting: As in `heterofl`.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Alam, Liu, Yan and Zhang, FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction,
        NeurIPS 2022. arXiv:2212.01548; code AIoT-MLSys-Lab/FedRolex.
    """
    capacities = assign_widths(widths, assignment, direction, width_seed)
    return _compose_heterofl(capacities, scaler, masks_logits, clip, weighting, training)


@validate_arguments
def fjord(
    widths: WidthsOrFile = (0.2, 0.4, 0.6, 0.8, 1.0),
    distillation: bool = True,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FjORD: ordered dropout; each step draws a width up to the client's own.

        step:  p uniform in {widths up to p_i},   g = grad [ F_i(m(p_i) w) + CE(softmax z(p_i), z(p)) ]
        w <- sum_i a_i m(p_i) w_i / sum_j a_j m(p_j),   entry by entry

    m(p) keeps the first ceil(p h) units of each hidden layer, z(p) are the logits at width p, and the softmax is
    constant. Without distillation, g is the gradient of F_i(m(p) w). Entries that nobody sends keep their value.

    Communication: as `heterofl`. Client state: none. Cost: two forward passes per step with distillation.

    Weight decay and momentum also move entries that a step has not drawn.
    Setting: 10 of 100 clients, SGD .1, weight decay 1e-4, batch 32, 1 epoch, 500 rounds.
    With widths=(1,) and without distillation, FjORD is FedAvg.
    Deviation from the code: it has batch norm with separate statistics for each width. Here, norms with running
    statistics raise an error.

    Args:
        widths: Client i has the width p_i = widths[i mod len(widths)]; or the path of a CSV file with the columns
            client, width (default .2, .4, .6, .8, 1).
        distillation: Whether p_i is trained in every step, and teaches the drawn width.
        weighting: The weights a_i: "samples" (n_i / n, the paper's) or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Horvath, Laskaridis, Almeida, Leontiadis, Venieris and Lane, FjORD: Fair and Accurate Federated Learning under
        heterogeneous targets with Ordered Dropout, NeurIPS 2021. arXiv:2102.13451; code adap/flower, baselines/fjord.
    """
    capacities = assign_widths(widths)
    rule = ordered_dropout(capacities, is_distilled=distillation)
    return _compose(capacities, masked_mean(weighting), rule, training)


def _compose_heterofl(
    capacities: Capacities,
    scaler: bool,
    masks_logits: bool,
    clip: float | None,
    weighting: WeightingOrName,
    training: Training,
) -> Algorithm:
    rule = plain_gradient if clip is None else clipped_gradient(clip)
    algorithm = _compose(
        capacities, masked_mean(weighting), rule, training, is_scaled=scaler, owns_labels=True, is_sliced=True
    )
    return replace(algorithm, objective=(restricted_cross_entropy(0.0),)) if masks_logits else algorithm


def _compose(
    capacities: Capacities, aggregator: Aggregator, rule: GradientRule, training: Training, **parts: bool
) -> Algorithm:
    def init(shared, num_clients: int):
        capacities.check(num_clients)
        return aggregator.init(shared, num_clients)

    return Algorithm(
        objective=(cross_entropy(),),
        local_update=with_capacity(sgd(**training, gradient=rule), capacities, **parts),
        aggregator=aggregator._replace(init=init),
        reports={"mask": result("mask")},
        personalize=own_sub_network(capacities),
    )
