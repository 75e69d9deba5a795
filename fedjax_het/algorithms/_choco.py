"""CHOCO-SGD."""

from typing import Annotated, Literal, Unpack

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.memories import exchanged
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.errors import InputError
from fedjax_het.mixing import estimate_gossip
from fedjax_het.server.aggregators import mean
from fedjax_het.topologies import TopologyOrName
from fedjax_het.validation import PositiveFraction, validate_arguments


@validate_arguments
def choco(
    topology: TopologyOrName = "ring",
    gamma: Annotated[PositiveFraction, LogUniform(1e-2, 1.0)] = 1.0,
    order: Literal["compress_first", "mix_first"] = "compress_first",
    start: Literal["models", "zeros"] = "models",
    **training: Unpack[Training],
) -> Algorithm:
    """CHOCO-SGD: neighbours exchange compressed changes of estimates.

        z_i = T_i(x_i);   e_i <- e_i + Q(z_i - e_i);   x_i <- z_i + gamma (sum_j W_ij e_j - e_i)

    Communication: Q(z_i - e_i), to every client that hears client i. Client state: the model, and its estimate e_i.

    T_i is local training, W the matrix of the topology, and Q the stages of the uplink, such as
    `uplink.top_k(0.01)` or `uplink.qsgd(16, feedback="estimates")`. Without stages and with gamma 1, this is D-PSGD.
    The mean model moves by the mean of z_i - x_i, whatever Q and gamma are. With several local steps and momentum, this
    is the quantized form of DFedAvgM. With order "mix_first", the authors' code, e_i follows x_i instead of z_i, so
    neighbours hear of a step one round later. All else is as in `dpsgd`.

    Args:
        topology: A name, or a `fedjax_het.topologies.Topology` (default "ring").
        gamma: The paper's consensus step γ (default 1, for no compression). The authors' code has .04 for the largest
            20 of 2,000 entries, .01 for 20 random ones, and .34 for QSGD with 16 levels. Larger values diverge.
        order: Whether the trained model is compressed before mixing ("compress_first", the paper's Algorithm 2), or the
            mixed model after it ("mix_first", the authors' code).
        start: The initial estimates: the common initial model ("models", the authors' code), or "zeros" (paper).
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Estimates start at zeros with "mix_first", or a stage of the uplink keeps errors itself.

    References:
        Koloskova, Stich and Jaggi, Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
        Communication, ICML 2019. arXiv:1902.00340; code epfml/ChocoSGD.
    """
    if order == "mix_first" and start == "zeros":
        raise InputError("start: with order='mix_first', estimates start at the models. Leave it out.")
    init = tree.zeros_like if start == "zeros" else lambda variables: variables
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        memory={"estimate": exchanged("estimate", init)},
        aggregator=mean("uniform"),
        mixing=estimate_gossip(topology, gamma, order),
    )
