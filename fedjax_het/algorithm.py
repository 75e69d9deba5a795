"""Algorithms as data: named slots filled with pure functions of a view."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import optax
from jaxtyping import Bool, Float, Int

from fedjax_het.mixing import Mixing
from fedjax_het.privacy import RecordPrivacy
from fedjax_het.problem import ForwardPass, Problem, shared_variables
from fedjax_het.shared_models import SharedModels
from fedjax_het.sharing import Sharing, share_all
from fedjax_het.types import (
    Aggregate,
    Array,
    Batch,
    Broadcast,
    ClientData,
    ClientGroups,
    ClientView,
    Gram,
    Key,
    Model,
    ModelPart,
    Named,
    Params,
    PyTree,
    Reads,
    ServerState,
    ServerView,
    Trained,
    UpdateStack,
    Upload,
    Variables,
    WeightedSum,
)

Term = Callable[[ForwardPass], Float[Array, ""]]
"""A term of the objective, including its weight."""
GradientRule = Callable[
    [Problem, Params, Variables, Batch, ClientView, Key], tuple[tuple[Float[Array, ""], Variables], Params]
]
"""Computes ((loss, new state), gradient) of a batch at (params, state)."""
Measure = Callable[[Problem, ClientView], PyTree]


class OutputMixture(NamedTuple):
    """Models of the same network whose logits are mixed, instead of the variables of a single model."""

    models: tuple[Variables, ...]
    weights: tuple[Float[Array, "*clients"], ...]


Personalization = Callable[[Problem, ClientView, Key], Variables | OutputMixture]
"""A client's view between rounds, before its next participation -> its personal model for evaluation."""
StartRule = Callable[[Problem, ClientView, Key], Variables]
"""A client's view before training -> the variables that it begins a round from, as in `view.start`."""


class StatefulGradientRule(NamedTuple):
    """A gradient rule with a state that is passed from step to step within a round, such as a dual variable.

    Args:
        init: View before training -> state of the first step.
        update: (state, arguments of a `GradientRule`) -> (result of a `GradientRule`, new state). The last state of a
            round is `results["gradient"]` of the view after training, for memories and reports.
    """

    init: Callable[[ClientView], PyTree]
    update: Callable[
        [PyTree, Problem, Params, Variables, Batch, ClientView, Key],
        tuple[tuple[tuple[Float[Array, ""], Variables], Params], PyTree],
    ]


class LocalUpdate(NamedTuple):
    """Local training of a client.

    Args:
        batch_size: Examples per step.
        train_with_drift: The same with the metric "drift" of diagnostics, the mean over steps of |w_k - w|^2, start w.
        max_batch_size: Maximum of the examples per step, for training in several parts. None: batch_size.
        groups: Groups of clients whose training is faster if it reads their number `Problem.group`, see `Layout`.
        count_parts: (problem, data, number of clients) -> the parts of the model that clients train, each with the
            number of its clients, from which costs are computed. None: all clients train the whole model.
    """

    train: Callable[[Problem, ClientView, Key], Trained]
    num_steps: Callable[[Any], Any]  # number of training examples -> steps; works on arrays
    batch_size: int
    train_with_drift: Callable[[Problem, ClientView, Key], Trained] | None = None
    max_batch_size: int | None = None
    groups: ClientGroups | None = None
    count_parts: Callable[[Problem, ClientData, int], Sequence[tuple[int, ModelPart]]] | None = None


class Memory(NamedTuple):
    """A quantity that a client stores between rounds."""

    init: Callable[[Variables], PyTree]
    update: Measure  # view.memory holds the old value


class Summary(NamedTuple):
    """A summary of a cohort's reports that the server publishes to all clients.

    Args:
        init: (problem, shared variables, number of clients, cohort size) -> initial value.
        update: (old value, stacked reports of the same name, view) -> new value.
        reads: How the summary reads the updates; see `Aggregator`. It may always read the tensors of the reports.
        sums: Its weighted sums of updates or reports.
        send: Value -> the part that clients receive; the server keeps the rest. None: the whole value.
        own_part: What clients receive -> the part of it that one client needs; only its shapes are read, for the cost
            of communication. None: all of it.
    """

    init: Callable[[Problem, Variables, int, int], PyTree]  # (problem, shared, num_clients, cohort_size)
    update: Callable[[PyTree, UpdateStack, ServerView], PyTree]
    reads: Reads = "sums"
    sums: tuple[WeightedSum, ...] = ()
    send: Callable[[PyTree], PyTree] | None = None
    own_part: Callable[[PyTree], PyTree] | None = None


class Aggregator(NamedTuple):
    """A rule that combines client updates on the server.

    Args:
        init: (shared variables, number of clients) -> initial state.
        update: (problem, state, view) -> (decision, new state). It reads the updates with the methods of
            `view.updates`, as it declares with `reads`, `sums` and `packed`.
        reads: How it reads the updates: "sums", only weighted sums (default); "tensors", also the updates themselves
            and their combinations; "gram", also inner products, in float64.
        sums: The weighted sums that it reads.
        packed: Path of a leaf -> whether it is sent and stacked in bfloat16. None: no leaf.
        gram_edit: For rules that replace each update by a combination of all updates, based on inner products alone:
            (Gram matrix K of the updates, view) -> C in float64, where client i's edited update is sum_j C_ij u_j. Used
            by diagnostics.
        is_uniform_mean: Whether the result is the unweighted mean over present clients, as stages on sums require.
        is_selective: Whether updates of some present clients are discarded; error feedback warns about it.
        extrapolation: Maximum factor by which the first aggregate of a run may scale an update that is the same for all
            clients; above 1 for rules that extrapolate, such as FedDyn's.
        named_clients: Pairs (option, client ids), such as ("root", (0,)). These clients must have training examples.
        runs_model: Whether it runs the whole model, of which no leaf may then be personal.
    """

    init: Callable[[Variables, int], PyTree]  # (shared, num_clients)
    update: Callable[[Problem, PyTree, ServerView], tuple[Aggregate, PyTree]]
    reads: Reads = "sums"
    sums: tuple[WeightedSum, ...] = ()
    packed: Callable[[str], bool] | None = None
    gram_edit: Callable[[Gram, ServerView], Gram] | None = None
    is_uniform_mean: bool = False
    is_selective: bool = False
    extrapolation: float = 1.0
    named_clients: tuple[tuple[str, tuple[int, ...]], ...] = ()
    runs_model: bool = False


class Weighting(NamedTuple):
    """Client weights that sum to one over the clients present and are zero for all others.

    Args:
        init: (shared variables, number of clients) -> initial state.
        update: (state, view) -> (weights, new state).
        per_client: For weights that are proportional to a function of each upload alone: that function. Their sum
            can then be computed while clients train.
        reads: How `update` reads the updates, see `Aggregator`.
    """

    init: Callable[[Variables, int], PyTree]
    update: Callable[[PyTree, ServerView], tuple[Float[Array, "cohort"], PyTree]]
    per_client: Callable[[Upload], Float[Array, ""]] | None = None
    reads: Reads = "sums"


class StageView(NamedTuple):
    """Information that a client has when it sends its update through a stage of the uplink."""

    received: Broadcast
    public: PyTree  # what the server published for this stage
    memory: PyTree  # the client's memory of this stage, () if it has none
    client: Int[Array, ""]  # client id
    num_clients: int  # all clients of the run, with training examples or without
    key: Key  # of (seed, round, client id, stage)
    round_key: Key  # of (seed, round, stage): known to all clients and the server, so sending it costs nothing


class Sent(NamedTuple):
    """The result of a stage for one client: the update it sends, and its memory for the next round.

    Args:
        update: The update as the server decodes it.
        memory: New value of the client's memory of this stage.
        statistics: Numbers that are summed over the clients present and passed to the stage's `receive`.
    """

    update: Variables
    memory: PyTree = ()
    statistics: Mapping[str, Array] = MappingProxyType({})


class ReceiveView(NamedTuple):
    """Information that the server has when a stage of the uplink acts on the combined update."""

    server: ServerView
    statistics: Named  # the sums of `Sent.statistics` over the clients present
    state: PyTree  # the state of the stage
    key: Key  # of (seed, round, stage), independent of all keys of clients
    num_clients: int  # all clients of the run, with training examples or without
    expected_clients: float  # expected number of clients per round, whoever participates


def _nothing() -> Mapping:
    return MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A step between a client's finished update and the server: clipping, compression, noise, an attack.

    The server receives the output of the stages: aggregators, diagnostics and sums read nothing else.

    Args:
        send: (update, view) -> what a client sends. None sends the update unchanged.
        collections: Collections that `send` receives: "params" (all others are sent unchanged) or "all".
        init: Shared variables -> the client's initial memory of this stage.
        init_server: (shared variables, number of clients, cohort size) -> initial state of the stage on the server.
        publish: State on the server -> the part that is sent to clients.
        receive: (combined update, view) -> (update for the server optimizer, new state). It runs after the aggregator,
            on the same collections as `send`.
        corrupt: (updates of the cohort [cohort, ...], view) -> replaced updates, for attackers that know the updates of
            other clients. The updates are then stacked, whatever the aggregator.
        bits: (bits of one client's update before the stage, the update's shapes) -> bits after the stage.
        attackers: (client ids, number of clients of the run) -> which of them are attackers; used by diagnostics.
        check: Raises InputError for algorithms that the stage does not support.
        check_run: The same for (fewest rounds between two participations of a client, rounds).
        hides_examples: Whether the server must not learn about clients' data other than through updates. Aggregators
            that read numbers of examples raise an error, and so do inputs standardized by moments of clients' examples.
        steps_without_reports: Whether the server also steps in rounds without any reporting client.
        named_clients: See `Aggregator`.
    """

    send: Callable[[Variables, StageView], Sent] | None = None
    collections: Literal["params", "all"] = "params"
    init: Callable[[Variables], PyTree] | None = None
    init_server: Callable[[Variables, int, int], PyTree] = lambda shared, num_clients, cohort_size: ()
    publish: Callable[[PyTree], PyTree] = lambda state: ()
    receive: Callable[[Variables, ReceiveView], tuple[Variables, PyTree]] | None = None
    corrupt: Callable[[Variables, "CorruptView"], Variables] | None = None
    bits: Callable[[float, Variables], float] = lambda bits, shapes: bits
    attackers: Callable[[Array, int], Array] | None = None
    check: Callable[["Algorithm"], None] = lambda algorithm: None
    check_run: Callable[[int, int], None] = lambda min_separation, rounds: None
    hides_examples: bool = False
    steps_without_reports: bool = False
    named_clients: tuple[tuple[str, tuple[int, ...]], ...] = ()


class CorruptView(NamedTuple):
    """Information that omniscient attackers have."""

    received: Broadcast
    cohort: Int[Array, "cohort"]  # client ids
    is_present: Bool[Array, "cohort"]
    num_clients: int  # all clients of the run
    state: PyTree  # the state of the stage on the server
    key: Key  # of (seed, round, stage), independent of all keys of honest clients


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A federated algorithm: objective, local training, aggregation, and sharing.

    Combine two papers with `dataclasses.replace(fedga(), sharing=sharing.batch_norms)`. Hyperparameters may be tracers.
    """

    objective: tuple[Term, ...]  # the sum of these terms is minimized
    local_update: LocalUpdate
    aggregator: Aggregator
    server_optimizer: optax.GradientTransformation = field(default_factory=lambda: optax.sgd(1.0))
    sharing: Sharing = share_all
    adapt: Callable[[Model], Model] = lambda model: model
    memory: Mapping[str, Memory] = field(default_factory=_nothing, hash=False)
    survey: Mapping[str, Measure] = field(default_factory=_nothing, hash=False)  # measured and sent before training
    survey_first: bool = False  # whether all clients are surveyed once, in rounds before the first training
    reports: Mapping[str, Measure] = field(default_factory=_nothing, hash=False)  # measured and sent after training
    published: Mapping[str, Summary] = field(default_factory=_nothing, hash=False)  # by the report that is summarized
    uplink: tuple[Stage, ...] = ()  # applied in this order to every client's update
    evaluated: Callable[[ServerState], Variables] = shared_variables  # shared variables that are evaluated and exported
    start: StartRule | None = None  # None: the received leaves and the client's personal leaves
    personalize: Personalization | None = None  # None evaluates the shared leaves with the client's personal leaves
    mixing: Mixing | None = None  # None: clients start from the server's model
    models: SharedModels | None = None  # None: the server has one model
    record_privacy: RecordPrivacy | None = None  # noise on the gradients of single examples; None: no noise
    reads_public: bool = False  # whether any slot reads the public examples of the federation
    reads_classes: bool = False  # whether a slot that sees no labels reads the model's outputs as logits of classes
