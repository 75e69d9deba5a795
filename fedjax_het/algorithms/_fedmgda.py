"""FedMGDA+."""

from typing import Annotated, Unpack

import jax.numpy as jnp
import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import Uniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import common_descent
from fedjax_het.server.weightings import WeightingName
from fedjax_het.validation import Fraction, NonNegative, PositiveFraction, validate_arguments


@validate_arguments
def fedmgda(
    epsilon: Annotated[Fraction, Uniform(0.0, 1.0)] = 0.1,
    *,
    weighting: WeightingName = "samples",
    server_learning_rate: NonNegative = 1.0,
    server_decay: PositiveFraction = 1.0,
    **training: Unpack[Training],
) -> Algorithm:
    """FedMGDA+: move in a direction that decreases all losses.

        u_i = (w_i - w) / ||w_i - w||
        l = argmin ||sum_i l_i u_i||^2   over the simplex with |l_i - p_i| <= epsilon
        w <- w + eta_g decay^r sum_i l_i u_i   in round r

    Communication: same as FedAvg. Client state: none. epsilon = 0 averages the normalized updates, which is not FedAvg.

    The length of a step is that of the mixture, at most eta_g, whatever the clients' learning rate: eta_g or its decay
    has to make it small. If the updates have no common descent direction and epsilon is 1, the model stays.
    Setting: eta_g 1; epsilon .2 (the co-author's script) or .1 (a third party's).
    Deviations: a co-author's code has p_i = 1/m (weighting="uniform") and fails if updates are linearly dependent;
    here the solution is exact, and clients whose update is zero are left out. Batch statistics take the mean with
    weights p_i.

    Args:
        epsilon: How far the mixture may differ from p. 1: not restricted (MGDA).
        weighting: Center p_i of the mixture: "samples" or "uniform".
        server_learning_rate: Step size eta_g (default 1).
        server_decay: Factor of eta_g per round (default 1).
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: A number is out of range.

    References:
        Hu, Shaloudegi, Zhang and Yu, Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022.
        arXiv:2006.11489; code huawei-noah/Federated-Learning (of a co-author).
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=common_descent(epsilon, weighting),
        server_optimizer=optax.sgd(lambda step: server_learning_rate * jnp.asarray(server_decay, float) ** step),
    )
