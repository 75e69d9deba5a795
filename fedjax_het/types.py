"""The records that travel through a round.

Axes: leaves of one client carry no client axis; what the server sees is stacked, leaves ``[cohort, ...]``;
what is kept between rounds is stacked over everyone, leaves ``[clients, ...]``.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

Array = jax.Array
HostArray = jax.Array | np.ndarray  # on the device, or on the host
Key = jax.Array  # a typed key, jax.random.key
PyTree = Any
Params = PyTree
Variables = dict[str, PyTree]
"""Flax collections: {"params": ..., "batch_stats": ..., "amplitude": ...}."""
Named = dict[str, PyTree]
"""An algorithm's own quantities, by name."""


# ---- examples --------------------------------------------------------------------------------------------------------
class Examples(NamedTuple):
    """Every example of a federation, once on the device, as stored (images stay uint8)."""

    inputs: HostArray  # [n, ...]
    labels: HostArray  # [n] int32, or [n, height, width] for masks


class Rows(NamedTuple):
    """One client's row of an index table into the examples; entries from `count` on are padding."""

    index: HostArray  # [capacity] int32
    count: HostArray  # [] int32

    def even_batch_size(self, most: int) -> HostArray:
        """Examples per batch where they are divided evenly among as few batches as hold at most `most` each; 0 for 0.

        So the batches of a client follow from how many examples it has, and none is much smaller than the others,
        which matters where a network normalises by its batch.
        """
        num_batches = -(-self.count // most)
        return -(-self.count // (num_batches + (num_batches == 0)))


class ClientData(NamedTuple):
    """One client's window on the examples: indices, never copies. `examples` never carries the client axis."""

    examples: Examples
    train: Rows
    valid: Rows
    test: Rows


class Batch(NamedTuple):
    inputs: Array  # [batch, ...] as the model takes them
    labels: Array  # [batch, ...]
    mask: Array  # [batch] 1 = an example, 0 = padding


# ---- what crosses the wire -------------------------------------------------------------------------------------------
class Broadcast(NamedTuple):
    """Server to every client of the cohort, the same for all."""

    round: Array  # [] int32, from 0
    shared: Variables
    published: Named


class Upload(NamedTuple):
    """Client to server; the server sees leaves [cohort, ...], and the updates as an `UpdateStack` instead."""

    update: Variables  # trained - received, shared leaves only; {} in a ServerView, which has `updates`
    reports: Named
    num_examples: Array  # [] float32
    num_steps: Array  # [] float32, the paper's tau


class Aggregate(NamedTuple):
    """The server's decision."""

    update: Variables  # one combined update of the shared leaves
    replies: Variables  # leaves [cohort, ...] written into personal leaves; {} = none


# ---- what stays ------------------------------------------------------------------------------------------------------
class ClientState(NamedTuple):
    """Leaves [clients, ...]; on several devices with rows behind the last client, for equal parts."""

    personal: Variables
    memory: Named
    rounds: Array  # int32: in how many rounds this client has reported


class ServerState(NamedTuple):
    round: Array
    shared: Variables
    optimizer: PyTree
    aggregator: PyTree
    published: Named


class RunCounters(NamedTuple):
    """Counts over the whole run."""

    reports: Array  # [] int32: uploads that the server used
    nonfinite: Array  # [] int32: uploads dropped: they, or what the server made of them, held NaN or infinity


class State(NamedTuple):
    server: ServerState
    clients: ClientState
    counters: RunCounters


# ---- what a part may look at -----------------------------------------------------------------------------------------
class ClientView(NamedTuple):
    """What one client can see in one round."""

    received: Broadcast
    memory: Named  # as it was when the round began
    answers: Named  # what this client measured before training (the survey)
    data: ClientData
    start: Variables  # received.shared merged with the client's own personal leaves
    local: Variables  # == start before training; while it trains, as the epoch began; the trained variables after
    optimizer: PyTree  # () before training, the local optimizer's last state after
    metrics: Mapping[str, Array]  # {} before training, what the local update measured after
    num_steps: Array  # 0 before training
    client: Array | int = 0  # [] its id, for what a recipe lists client by client


class UpdateStack(Protocol):
    """One tree for each client of a cohort, their updates or one of their reports; zeros for clients that are absent.

    Nothing is stacked for a `weighted_sum` whose weights are known beforehand: it runs while clients train. How all
    else is held, on which devices and in which precision, follows from what is called (engine/update_stack.py).
    """

    def weighted_sum(self, weights: Array, per_client: Callable[[Upload], Array] | None = None) -> PyTree:
        """Return sum_i weights_i u_i.

        Args:
            weights: [cohort], 0 for absent clients.
            per_client: gives, from one client's upload alone, numbers >= 0 that the weights are proportional to.
                None where there is no such function; the updates are then stacked. It runs while clients train, and
                must not read the view.

        Returns:
            A tree like one client's.
        """
        ...

    def gram(self) -> Array:
        """Return the inner products <u_i, u_j> over all leaves, [cohort, cohort] in float64.

        Whoever calls this computes in float64 from then on: its function is traced anew with float64 at hand.
        """
        ...

    def products(self, reference: PyTree) -> Array:
        """Return the inner products <u_i, v> with a tree like one client's, [cohort] in float64, as `gram` does."""
        ...

    def combine(self, coefficients: Array) -> PyTree:
        """Return sum_i c_i u_i for coefficients [cohort] of any kind, such as those found from `gram`."""
        ...

    def tensors(self) -> PyTree:
        """Return the leaves [cohort, ...], in float32, for rules that sort or choose coordinates."""
        ...

    def select(self, is_chosen: "Callable[[str], bool]") -> "UpdateStack":
        """Return the stack of those leaves alone whose path, "params/conv_0/kernel", is chosen."""
        ...

    def by_tensor(self) -> PyTree:
        """Return a tree with a stack in the place of each leaf; its sums are single arrays."""
        ...

    def astype(self, dtype: str) -> "UpdateStack":
        """Return the stack in "float32" or "bfloat16"; the leaves are then sent and stacked so for every reader."""
        ...


class ServerView(NamedTuple):
    """What the server can see in one round."""

    received: Broadcast  # what the clients were sent
    uploads: Upload  # leaves [cohort, ...]; zeros where a client did not report; `update` is {}
    cohort: Array  # [cohort] client ids
    is_present: Array  # [cohort] bool: it was there, has examples, and everything it sent was finite
    num_clients: int  # that have training examples, N: whoever has none counts in no mean over all clients
    updates: UpdateStack  # what the clients sent


class RoundSnapshot(NamedTuple):
    """A round as nobody in it can see it; what diagnostics read. Leaves of clients: [cohort, ...]."""

    view: ServerView  # what the server saw
    data: ClientData  # whose rows are the cohort's; test is None where no client has test examples
    personal: Variables  # what the clients keep after the round
    shared: Variables  # the server's after the round
    gram_edit: Callable[[Array, ServerView], Array] | None  # see Aggregator
    key: Key


class Trained(NamedTuple):
    """What a local update hands back."""

    variables: Variables
    num_steps: Array
    optimizer: PyTree
    metrics: Mapping[str, Array]  # scalars of this client's training; "loss" is its mean over the round


# ---- the model as the field sees it: a feature extractor and a head -------------------------------------------------
class Context(NamedTuple):
    """The circumstances of a forward pass."""

    mask: Array  # [batch]: statistics over the batch leave padding out
    round: Array  # [] int32
    key: Key
    is_training: bool


class Outputs(NamedTuple):
    features: Array  # [batch, feature]
    logits: Array  # [batch, class], or [batch, height, width, class]
    extras: Named


class Model(NamedTuple):
    """A network as four pure functions.

    init(key, inputs) -> variables.
    encode(variables, inputs, context) -> ((features, extras), the collections besides params, new).
    classify(params, features) -> logits, from the head at ``params/classifier``.
    layers(inputs) -> {path of a layer, "block_0/norm": its class}; sharing rules read it.
    """

    init: Callable[[Key, Array], Variables]
    encode: Callable[[Variables, Array, Context], tuple[tuple[Array, Named], Variables]]
    classify: Callable[[Params, Array], Array]
    layers: Callable[[Array], Mapping[str, type]]


class ForwardPass(NamedTuple):
    """One forward pass, handed to every term of an objective."""

    problem: Any  # the LocalProblem that ran it
    params: Params
    state: Variables  # the other collections, after the pass
    outputs: Outputs
    batch: Batch
    view: ClientView
    key: Key
