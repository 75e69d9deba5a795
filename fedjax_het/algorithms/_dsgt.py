"""Gradient tracking."""

from typing import Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.gradients import tracked_gradient
from fedjax_het.client.local_updates import LearningRate, TrainingWithoutRate, sgd
from fedjax_het.client.memories import gradient_state
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.errors import InputError
from fedjax_het.mixing import Tracking, gradient_tracking
from fedjax_het.server.aggregators import mean
from fedjax_het.topologies import TopologyOrName
from fedjax_het.validation import validate_arguments


@validate_arguments
def dsgt(
    topology: TopologyOrName = "ring",
    variant: Tracking = "dsgt",
    learning_rate: LearningRate = 0.1,
    **training: Unpack[TrainingWithoutRate],
) -> Algorithm:
    """Gradient tracking: neighbours also average estimates of the gradient.

        dsgt      x <- W (x - lr y),   y <- W y + g_new - g_old
        diging    x <- W x - lr y,     y <- W y + g_new - g_old
        atc       x <- W (x - lr y),   y <- W (y + g_new - g_old)

    Communication: x_i - lr y_i and y_i, twice D-PSGD's. Client state: the model, and the correction y_i - g_i.

    x, y and g are the rows of all clients. y_i starts at the first gradient, and g_old is the gradient of the last
    round on its own batch, so that the mean of y_i is always the mean of g_i. With full batches, clients reach the
    optimum of the mean loss, of which D-PSGD with a constant rate stops short. A round is one step by definition; more
    steps raise an error. Stages of the uplink act on the model alone. All else is as in `dpsgd`. No code by the authors
    was found.

    Args:
        topology: A name, or a `fedjax_het.topologies.Topology` (default "ring").
        variant: "dsgt" (default), "diging" or "atc".
        learning_rate: Learning rate lr.
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: More than one local step, momentum, weight decay or another optimizer is given.

    References:
        Pu and Nedic, Distributed Stochastic Gradient Tracking Methods, Mathematical Programming 2021. arXiv:1805.11454;
        Nedic, Olshevsky and Shi, Achieving Geometric Convergence for Distributed Optimization over Time-Varying Graphs
        (DIGing), SIAM Journal on Optimization 2017. arXiv:1607.03218.
    """
    if training.get("steps") not in (None, 1) or training.get("epochs") is not None:
        raise InputError("steps: gradient tracking takes one step per round. Leave out steps and epochs.")
    for setting in ("momentum", "weight_decay", "optimizer"):
        if training.get(setting):
            raise InputError(f"{setting}: gradient tracking needs plain SGD. Leave {setting} out.")
    settings = training | {"steps": 1, "epochs": None}
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(learning_rate, **settings, gradient=tracked_gradient()),
        memory={"tracking": gradient_state()},
        aggregator=mean("uniform"),
        mixing=gradient_tracking(topology, variant),
    )
