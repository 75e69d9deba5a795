"""Rounds without a server: what clients do with their models and those of their neighbours.

Every client keeps its own version x_i of the shared leaves. Names in equations: W, the matrix of the round; T_i, the
local training of client i.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
from jaxtyping import Int

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.topologies import Topology, TopologyOrName, resolve_topology
from fedjax_het.types import Array, Named, PyTree, Variables
from fedjax_het.validation import Count, NonNegative, validate_arguments

MixingOrder = Literal["adapt_then_combine", "combine_then_adapt", "adapt_while_combine"]
Tracking = Literal["dsgt", "diging", "atc"]
Average = Callable[[PyTree], PyTree]
"""X -> W X, for trees with leaves [cohort, ...]."""


class Kept(NamedTuple):
    """What the clients of a cohort keep, leaves [cohort, ...]."""

    model: Variables  # their versions of the shared leaves
    memory: Named


class Mixing(NamedTuple):
    """A rule of rounds without a server.

    Args:
        topology: Who hears whom.
        combine: (average, round, kept before training, kept after training) -> kept after the exchange.
        is_before: Whether models are also averaged before training.
        num_mixings: The number of times Q that models are exchanged per round (default 1): W^Q.
        sends: The model that a client sends, as its difference from what the receivers know of it: "trained", as the
            difference from the model before training; "estimated", the trained model, or "estimated_start", the model
            before training, as the difference from memory["estimate"], to which it is added.
        carried: The memories that clients send along with the model, which no stage of the uplink changes.
        is_directed: Whether weights are those of the clients that send, on a strongly connected graph (push-sum).
    """

    topology: Topology
    combine: Callable[[Average, Int[Array, ""], Kept, Kept], Kept]
    is_before: bool = False
    num_mixings: int = 1
    sends: Literal["trained", "estimated", "estimated_start"] = "trained"
    carried: tuple[str, ...] = ()
    is_directed: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """The memories that the algorithm must have."""
        return self.carried if self.sends == "trained" else ("estimate", *self.carried)

    def count_messages(self, num_clients: int) -> float:
        """The mean number of models that a client sends per round if all are present, over eight rounds."""

        def count(number: int) -> float:
            return int((self.topology.connect(num_clients, number, make_key(number)).weights > 0).sum()) / num_clients

        return self.num_mixings * sum(map(count, range(8))) / 8


@validate_arguments
def gossip(
    topology: TopologyOrName = "ring", order: MixingOrder = "adapt_then_combine", num_mixings: Count = 1
) -> Mixing:
    """Average models with those of neighbours.

        adapt_then_combine     x_i <- sum_j W_ij T_j(x_j)
        combine_then_adapt     x_i <- T_i(sum_j W_ij x_j)
        adapt_while_combine    x_i <- sum_j W_ij x_j + T_i(x_i) - x_i

    Args:
        topology: A name, or a `Topology`.
        order: One of these rules (default "adapt_then_combine").
        num_mixings: The number of times Q that models are exchanged per round (default 1): W^Q.
    """

    def combine(average: Average, number: Array, before: Kept, after: Kept) -> Kept:
        if order == "combine_then_adapt":
            return after
        return after._replace(model=_combine(average, order == "adapt_while_combine", before.model, after.model))

    return Mixing(resolve_topology(topology), combine, order == "combine_then_adapt", num_mixings)


@validate_arguments
def estimate_gossip(
    topology: TopologyOrName = "ring",
    step: NonNegative = 1.0,
    order: Literal["compress_first", "mix_first"] = "compress_first",
) -> Mixing:
    """Exchange compressed differences from estimates of the models, which all neighbours keep (CHOCO).

        compress_first     e_i <- e_i + Q(T_i(x_i) - e_i),   x_i <- T_i(x_i) + gamma (sum_j W_ij e_j - e_i)
        mix_first          e_i <- e_i + Q(x_i - e_i),        the same

    Q are the stages of the uplink. Reads memory["estimate"], e_i.

    Args:
        topology: A name, or a `Topology`.
        step: The step gamma towards the neighbours' estimates (default 1).
        order: Whether the trained model is compressed ("compress_first"), or the model before training.
    """

    def combine(average: Average, number: Array, before: Kept, after: Kept) -> Kept:
        _, estimate = tree.partition_like(after.memory["estimate"], after.model)
        change = tree.subtract(average(estimate), estimate)
        return after._replace(model=tree.add(after.model, tree.scale(step, change)))

    sends = "estimated" if order == "compress_first" else "estimated_start"
    return Mixing(resolve_topology(topology), combine, sends=sends)


@validate_arguments
def gradient_tracking(topology: TopologyOrName = "ring", variant: Tracking = "dsgt") -> Mixing:
    """Exchange models, and estimates y_i of the mean gradient (gradient tracking).

    See `fedjax_het.algorithms.dsgt`. memory["tracking"] is the correction c_i with which a client starts a round, and
    the direction g_i + c_i of its step after training.

    Args:
        topology: A name, or a `Topology`.
        variant: "dsgt", "diging" or "atc".
    """

    def combine(average: Average, number: Array, before: Kept, after: Kept) -> Kept:
        correction, direction = before.memory["tracking"], after.memory["tracking"]
        _, shared = tree.partition_like(direction, after.model["params"])
        change = tree.subtract(average(shared), shared)
        if variant == "atc":
            # The step itself is averaged, and then the model; the first direction is the first gradient.
            is_first = number == 0
            change = tree.where(is_first, tree.zeros_like(change), change)
            moved = tree.subtract(after.model, before.model)
            moved = tree.where(is_first, moved, average(moved))
            model = average(tree.add(before.model, moved))
        else:
            model = _combine(average, variant == "diging", before.model, after.model)
        _, own = tree.partition_like(correction, change)
        correction = tree.merge(correction, tree.add(own, change))
        return Kept(model, after.memory | {"tracking": correction})

    return Mixing(resolve_topology(topology), combine, carried=("tracking",))


@validate_arguments
def push_sum(topology: TopologyOrName = "exponential") -> Mixing:
    """Divide models among the clients that hear them, on a directed graph (push-sum).

        u_i <- sum_j P_ij (w_j x_j + T_j(x_j) - x_j),   w_i <- sum_j P_ij w_j,   x_i <- u_i / w_i

    The columns of P have sum 1: a client keeps 1 / (1 + h_j), and so much goes to each of the h_j clients that hear it.
    Reads memory["weight"], w_i.

    Args:
        topology: A name, or a `Topology`; its weights are replaced.

    Raises:
        InputError: The weights of the topology are given as a function.
    """
    graph = resolve_topology(topology)
    if callable(graph.weights):
        raise InputError("topology: push-sum determines the weights. Pass a topology without a function for them.")

    def combine(average: Average, number: Array, before: Kept, after: Kept) -> Kept:
        weight = before.memory["weight"]
        moved = tree.subtract(after.model, before.model)
        biased = jax.tree.map(lambda x, change: tree.add_axes(weight, x.ndim) * x + change, before.model, moved)
        biased, weight = average((biased, weight))
        model = jax.tree.map(lambda x: x / tree.add_axes(weight, x.ndim), biased)
        return Kept(model, after.memory | {"weight": weight})

    return Mixing(graph._replace(weights="out_degree"), combine, carried=("weight",), is_directed=True)


def _combine(average: Average, is_simultaneous: bool, before: Variables, after: Variables) -> Variables:
    """W T(X), or W X + T(X) - X if clients train and average at the same time."""
    if not is_simultaneous:
        return average(after)
    return tree.add(after, tree.subtract(average(before), before))
