"""DepthFL."""

from collections.abc import Sequence
from typing import Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.depths import Teacher, assign_depths, exits_cross_entropy, own_exits, with_depth
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import result
from fedjax_het.models import with_exits
from fedjax_het.server.aggregators import masked_mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Count, CountOrZero, NonNegative, Positive, refuse_without_effect, validate_arguments


@validate_arguments
def depthfl(
    depths: Sequence[Count] | str = (1, 2, 3, 4),
    exits: Sequence[str] | None = None,
    weight: NonNegative = 1.0,
    ramp: CountOrZero = 300,
    *,
    teacher: Teacher = "others",
    temperature: Positive = 3.0,
    weighting: WeightingOrName = "uniform",
    **training: Unpack[Training],
) -> Algorithm:
    """DepthFL: clients train the first layers, each up to a classifier.

        min  sum_{i <= d} CE(z_i, y) + w_t/(d - 1) sum_{i != j <= d} KL(softmax z_j || softmax z_i),   d its depth
        w <- mean over the clients that have the leaf,   leaf by leaf

    The exits teach one another, each with constant targets; w_t = w exp(-5 (1 - min(t, T)/T)^2) in round t.

    Communication: the client's layers, down and up. Client state: none.

    The server's model averages the logits of all exits, and `personal/...` those of the client's own. A network whose
    only exit is its classifier trains as FedAvg with equal weights. Norms with running statistics raise an error.
    Setting: CIFAR-100, 100 clients, ResNet-18 with four exits, SGD .1 times .998 per round, weight decay 1e-3, batch
    50, 5 epochs, 1000 rounds.
    Deviation from the code: its server and clients use FedDyn, alpha .1, which is not reproduced.

    Args:
        depths: Client i has the first depths[i mod len(depths)] exits; or the path of a CSV file with the columns
            client, depth (default 1, 2, 3, 4). Larger numbers than that of the exits are all exits.
        exits: The layers in front of which there is an exit, see `models.with_exits`. None: all at the top of the
            network.
        weight: The largest weight w of the divergences (default 1).
        ramp: The number T of rounds until it is reached (default 300).
        teacher: "others" (default), as above; "last", ScaleFL's loss, in which the last exit teaches the others, see
            `objectives.exits_cross_entropy`.
        temperature: The temperature of "last" (default 3).
        weighting: The weights of clients: "uniform" (default, as in the code) or "samples".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: The file is malformed, an option has no effect, or, before the first round, the network cannot have
            these exits.

    References:
        Kim, Yu, Kim and Moon, DepthFL: Depthwise Federated Learning for Heterogeneous Clients, ICLR 2023; code
        adap/flower, baselines/depthfl.
    """
    if teacher == "others":
        refuse_without_effect(depthfl, "with teacher='others'", temperature=temperature)
    own, aggregator = assign_depths(depths), masked_mean(weighting)

    def init(shared, num_clients: int):
        own.check(num_clients)
        return aggregator.init(shared, num_clients)

    return Algorithm(
        objective=(exits_cross_entropy(own, weight, ramp, teacher, temperature),),
        local_update=with_depth(sgd(**training), own),
        aggregator=aggregator._replace(init=init),
        reports={"mask": result("mask")},
        adapt=with_exits(exits),
        personalize=own_exits(own),
    )
