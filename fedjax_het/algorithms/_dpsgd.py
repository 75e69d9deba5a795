"""Methods without a server: D-PSGD, DFedAvgM and DFedSAM."""

from dataclasses import replace
from typing import Annotated, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.sharpness import sharpness_aware
from fedjax_het.mixing import MixingOrder, gossip
from fedjax_het.server.aggregators import mean
from fedjax_het.topologies import TopologyOrName
from fedjax_het.validation import Count, NonNegative, validate_arguments


@validate_arguments
def dpsgd(
    topology: TopologyOrName = "ring",
    order: MixingOrder = "adapt_then_combine",
    **training: Unpack[Training],
) -> Algorithm:
    """D-PSGD: clients average their own models with those of their neighbours.

    T_i is the local training of client i, W the matrix of the topology:

        adapt_then_combine     x_i <- sum_j W_ij T_j(x_j)
        combine_then_adapt     x_i <- T_i(sum_j W_ij x_j)
        adapt_while_combine    x_i <- sum_j W_ij x_j + T_i(x_i) - x_i

    Communication: every client sends its model to those that hear it. Client state: the model.

    The model that is tested is the mean of all clients' models, which no client has; `personal/...` are the clients'.
    Absent clients, and those outside the cohort, keep their model, and the weights are those of the graph of the
    others. Numbers of examples do not enter.
    The complete graph with adapt_then_combine is FedAvg with equal weights and full participation.
    Setting: Lian et al. take one step per round; in DisPFL's code combine_then_adapt, 100 clients, SGD .1 times .998
    per round, decay 5e-4, batch 128, 5 epochs.

    Args:
        topology: A name, or a `fedjax_het.topologies.Topology` (default "ring").
        order: The order of training and mixing: "adapt_then_combine" (ChocoSGD's code, default), "combine_then_adapt"
            (DisPFL's code), or "adapt_while_combine" (the paper's Algorithm 1).
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Lian et al., Can Decentralized Algorithms Outperform Centralized Algorithms?, NeurIPS 2017. arXiv:1705.09056;
        code epfml/ChocoSGD, rong-dai/DisPFL.
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean("uniform"),
        mixing=gossip(topology, order),
    )


@validate_arguments
def dfedavgm(topology: TopologyOrName = "ring", **training: Unpack[Training]) -> Algorithm:
    """DFedAvgM: steps with momentum between exchanges of models with neighbours.

        v <- theta v + g(y),  y <- y - lr v,  K steps from y = x_i and v = 0;   x_i <- sum_j W_ij y_j

    Communication: same as D-PSGD. Client state: the model.

    momentum = 0 is DFedAvg, which is `dpsgd` with K local steps. All else is as in `dpsgd`.

    Args:
        topology: A name, or a `fedjax_het.topologies.Topology` (default "ring").
        training: Settings of local training, see `local_updates.sgd`; `momentum` is the paper's theta (default .9). It
            starts at zero in every round.

    References:
        Sun, Li and Wang, Decentralized Federated Averaging, TPAMI 2022. arXiv:2104.11375. No code by the authors.
    """
    training.setdefault("momentum", 0.9)
    return dpsgd(topology, **training)


@validate_arguments
def dfedsam(
    topology: TopologyOrName = "ring",
    rho: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.01,
    num_mixings: Count = 1,
    *,
    epsilon: NonNegative = 1e-12,
    **training: Unpack[Training],
) -> Algorithm:
    """DFedSAM: sharpness-aware minimization without a server.

        e = rho g(w) / (||g(w)|| + epsilon),   w <- w - lr g(w + e),  K steps from x_i;   x <- W^Q z

    Communication: that of D-PSGD, Q times per round. Client state: the model. Cost: two gradients per step.

    Both gradients of a step are of the same batch. rho = 0 with Q = 1 is DFedAvg. All else is as in `dpsgd`.

    Args:
        topology: A name, or a `fedjax_het.topologies.Topology` (default "ring").
        rho: Perturbation radius, the paper's ρ (default .01; .01 to .05).
        num_mixings: The number of exchanges Q per round (default 1); more is DFedSAM-MGS.
        epsilon: Constant added to the norm (default 1e-12).
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Shi et al., Improving the Model Consistency of Decentralized Federated Learning, ICML 2023. arXiv:2302.04083. No
        code by the authors.
    """
    rule = sharpness_aware(rho, epsilon=epsilon, only=training.get("only"))
    return replace(
        dpsgd(topology),
        local_update=sgd(**training, gradient=rule),
        mixing=gossip(topology, num_mixings=num_mixings),
    )
