"""Stochastic gradient push."""

from typing import Unpack

import jax.numpy as jnp

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, pop_optimizer, sgd
from fedjax_het.client.memories import exchanged, optimizer_state
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.mixing import push_sum
from fedjax_het.server.aggregators import mean
from fedjax_het.topologies import TopologyOrName
from fedjax_het.validation import validate_arguments


@validate_arguments
def sgp(topology: TopologyOrName = "one_peer_exponential", **training: Unpack[Training]) -> Algorithm:
    """SGP: neighbours average on a directed graph (push-sum).

        z_i = x_i / w_i;   x_i <- sum_j P_ij (x_j + T_j(z_j) - z_j);   w_i <- sum_j P_ij w_j,   w_i = 1 at the start

    Communication: x_i and w_i, to every client that hears client i. Client state: the model z_i, the weight w_i, and
    the state of the optimizer.

    T_j is local training, in the paper one step. P_ij = 1 / (1 + h_j), where h_j clients hear client j: a client
    divides what it has among them and itself, so it need not know whom the others hear. If P is doubly stochastic, w_i
    stays 1, and this is D-PSGD. Momentum is kept from round to round, and never exchanged. Clients train and test z_i.
    A graph in which some model does not reach all clients raises an error, unless it changes with the round. All else
    is as in `dpsgd`.
    Setting: ImageNet, one peer, batch 256, lr .1 per client with warm-up, Nesterov momentum .9
    (`optimizer=optax.sgd(..., nesterov=True)`), decay 1e-4. The released graph alternates forward and backward peers;
    "one_peer_exponential" has the forward ones.

    Args:
        topology: A name, or a `fedjax_het.topologies.Topology` (default "one_peer_exponential"); its weights are
            replaced by P.
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: The weights of the topology are given, or the graph is not strongly connected.

    References:
        Assran et al., Stochastic Gradient Push for Distributed Deep Learning, ICML 2019. arXiv:1811.10792; code
        facebookresearch/stochastic_gradient_push.
    """
    optimizer = pop_optimizer(training)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training, optimizer=optimizer, keep_optimizer=True),
        memory={
            "weight": exchanged("weight", lambda variables: jnp.ones((), float)),
            "optimizer": optimizer_state(optimizer),
        },
        aggregator=mean("uniform"),
        mixing=push_sum(topology),
    )
