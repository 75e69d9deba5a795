"""Exchange of models among clients that have no server."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # imports its subpackages lazily
from jaxtyping import Bool, Int

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm
from fedjax_het.errors import InputError
from fedjax_het.mixing import Kept, Mixing
from fedjax_het.topologies import Topology
from fedjax_het.types import Array, ClientState, HostArray, Key, Named, PyTree, State, Variables

_MIXING = 0xFFFFFFFC  # folded into keys, as those of `uplink`; never a client id


class Meeting(NamedTuple):
    """The exchange of a round among a cohort."""

    rule: Mixing
    num_clients: int
    key: Key  # of the round's clients
    round: Int[Array, ""]
    ids: Int[Array, "cohort"]
    is_shifted: bool  # whether the cohort is all clients in order, on several devices

    def average(self, is_present: Bool[Array, "cohort"], rows: PyTree) -> PyTree:
        """Return W^Q X for rows X, leaves [cohort, ...]; absent clients, and all outside the cohort, keep theirs."""
        is_here = jnp.zeros(self.num_clients, bool).at[self.ids].set(is_present)
        key = jax.random.fold_in(self.key, jnp.uint32(_MIXING))
        links = self.rule.topology.connect(self.num_clients, self.round, key, is_here)
        links = links if self.is_shifted else links.restrict(self.ids)
        for _ in range(self.rule.num_mixings):
            rows = links.mix(rows)
        return rows


def check_mixing(algorithm: Algorithm, num_clients: int, *, is_asynchronous: bool) -> None:
    """Raise InputError if a round without a server cannot be composed of these parts."""
    rule = algorithm.mixing
    if rule is None:
        return
    if is_asynchronous:
        raise InputError("asynchronous: there is no server whose steps clients could miss. Leave it out.")
    if algorithm.survey or algorithm.published:
        raise InputError("mixing: a survey or a published value needs a server. Choose another algorithm.")
    if not algorithm.aggregator.is_uniform_mean:
        raise InputError(
            "aggregator: without a server it only reports the mean of the clients' models. Use mean('uniform')."
        )
    if any(stage.receive or stage.corrupt for stage in algorithm.uplink):
        raise InputError("uplink: a stage acts at the server, and there is none. Leave it out.")
    if missing := [name for name in rule.reads if name not in algorithm.memory]:
        raise InputError(f"mixing: it exchanges memory['{missing[0]}']. Add it to the algorithm's memory.")
    if rule.sends != "trained" and any(stage.init for stage in algorithm.uplink):
        raise InputError("feedback: the estimates of this algorithm keep what is lost. Use 'none' or 'estimates'.")
    if (rule.topology.weights == "out_degree") != rule.is_directed:
        raise InputError("topology: only push-sum (`sgp`) takes the weights 'out_degree'. Choose others.")
    if rule.is_directed and not _is_strongly_connected(rule.topology, num_clients):
        raise InputError("topology: a client's model does not reach all others. Use a strongly connected graph.")


def receive_own(mixing: Mixing | None, shared: Variables, clients: ClientState) -> Variables:
    """What a client receives at the start of a round: its own version of the shared leaves, or the server's."""
    return shared if mixing is None else tree.partition_like(clients.personal, shared)[1]


def choose_message(
    mixing: Mixing | None, own: Variables, trained: Variables, memory: Named
) -> tuple[Variables, Variables]:
    """(The model that a client sends, what the receivers know of it.) The message is the difference."""
    if mixing is None or mixing.sends == "trained":
        return trained, own
    return own if mixing.sends == "estimated_start" else trained, tree.partition_like(memory["estimate"], own)[1]


def keep_message(mixing: Mixing, state: ClientState, trained: Variables, sent: Variables) -> ClientState:
    """A client's state after it has sent a model: what arrives is its own model, or the estimate of it."""
    if mixing.sends == "trained":
        return state._replace(personal=tree.merge(state.personal, sent))
    memory = state.memory | {"estimate": tree.merge(state.memory["estimate"], sent)}
    return state._replace(personal=tree.merge(state.personal, trained), memory=memory)


def mix_before(meeting: Meeting, state: State, is_here: HostArray) -> ClientState:
    """Exchange the models of a cohort before training, if the rule says so; rows of padding follow the cohort."""
    if not meeting.rule.is_before:
        return state.clients
    num_cohort = len(meeting.ids)
    own, cohort = receive_own(meeting.rule, state.server.shared, state.clients), slice(num_cohort)
    mixed = meeting.average(jnp.asarray(is_here[cohort]), tree.take(own, cohort))
    own = tree.put(own, jnp.arange(num_cohort), mixed)
    return state.clients._replace(personal=tree.merge(state.clients.personal, own))


def mix_after(meeting: Meeting, num_training: int, before: State, after: State) -> State:
    """Exchange the models of a cohort after training; the server's shared leaves follow the mean over all clients.

    Args:
        meeting: The exchange.
        num_training: The number of clients with training examples, over which the mean is taken.
        before: The state before the round, its clients [cohort, ...].
        after: The state after training, its clients [cohort, ...].
    """
    started, trained = (
        Kept(receive_own(meeting.rule, before.server.shared, state.clients), state.clients.memory)
        for state in (before, after)
    )
    is_used = after.clients.rounds > before.clients.rounds
    kept = meeting.rule.combine(partial(meeting.average, is_used), meeting.round, started, trained)
    kept = tree.where(is_used, kept, trained)
    weights = jnp.full(len(is_used), 1 / num_training)
    shared = tree.add(before.server.shared, tree.weighted_sum(tree.subtract(kept.model, started.model), weights))
    personal = tree.merge(after.clients.personal, kept.model)
    return after._replace(
        clients=after.clients._replace(personal=personal, memory=kept.memory),
        server=after.server._replace(shared=shared),
    )


def _is_strongly_connected(topology: Topology, num_clients: int) -> bool:
    """Whether every client's model reaches all others; True for graphs that change with the round."""
    with jax.ensure_compile_time_eval():
        first, *others = (
            np.asarray(topology.hear(num_clients, jnp.asarray(number), make_key(number))) for number in range(3)
        )
    if any(not np.array_equal(first, other) for other in others):
        return True
    ends = np.repeat(np.arange(num_clients), first.shape[1]), first.ravel()
    graph = scipy.sparse.coo_array((np.ones(first.size), ends), shape=(num_clients, num_clients))
    return scipy.sparse.csgraph.connected_components(graph, connection="strong", return_labels=False) == 1
