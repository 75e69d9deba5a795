"""Algorithms as data: named slots filled with pure functions of a view."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import optax
from jaxtyping import Bool, Float, Int

from fedjax_het.sharing import Sharing, share_all
from fedjax_het.types import (
    Aggregate,
    Array,
    Batch,
    Broadcast,
    ClientView,
    ForwardPass,
    Gram,
    Key,
    Model,
    Named,
    Params,
    Problem,
    PyTree,
    ServerState,
    ServerView,
    Trained,
    UpdateStack,
    Upload,
    Variables,
)

Term = Callable[[ForwardPass], Float[Array, ""]]
"""One summand of the objective; it carries its own weight."""
GradientRule = Callable[
    [Problem, Params, Variables, Batch, ClientView, Key], tuple[tuple[Float[Array, ""], Variables], Params]
]
"""((loss, new state), gradient) of one batch at (params, state)."""
Measure = Callable[[Problem, ClientView], PyTree]


class OutputMixture(NamedTuple):
    """Models of the same network whose logits are mixed, in place of the variables of a single one."""

    models: tuple[Variables, ...]
    weights: tuple[Float[Array, "*clients"], ...]


Personalization = Callable[[Problem, ClientView, Key], Variables | OutputMixture]
"""A client's view between rounds, as it would be asked next -> what is evaluated as its own model."""


class StatefulGradientRule(NamedTuple):
    """A gradient rule with a state that goes from step to step of a round, such as a dual variable.

    Args:
        init: The view before training -> the state of the first step.
        update: (its state, the arguments of a `GradientRule`) -> (what a `GradientRule` returns, its new state). The
            last state of a round is `results["gradient"]` of the view after training, for memories and reports.
    """

    init: Callable[[ClientView], PyTree]
    update: Callable[
        [PyTree, Problem, Params, Variables, Batch, ClientView, Key],
        tuple[tuple[tuple[Float[Array, ""], Variables], Params], PyTree],
    ]


class OfRun(NamedTuple):
    """Annotation of an argument of a factory whose default, in a config, is a setting of the run.

    rounds: Annotated[int, OfRun("rounds")] = 40
    """

    setting: str


class Uniform(NamedTuple):
    """Annotation of an argument that a study searches: numbers drawn uniformly between two."""

    low: float
    high: float

    def draw(self, share: float) -> float:
        """The number that this share of the draws, from 0 to 1, is below."""
        return self.low + share * (self.high - self.low)


class LogUniform(NamedTuple):
    """Annotation of an argument that a study searches: numbers whose logarithm is drawn uniformly between two."""

    low: float
    high: float

    def draw(self, share: float) -> float:
        """The number that this share of the draws, from 0 to 1, is below."""
        return self.low * (self.high / self.low) ** share


class LocalUpdate(NamedTuple):
    """The training of a client.

    Args:
        train: (problem, view, key) -> the trained variables.
        num_steps: Numbers of training examples -> numbers of steps.
        batch_size: Examples per step.
        train_with_drift: The same training, with the further metric "drift", the mean over its steps of |w_k - w|^2,
            from the weights w at the start of the round; diagnostics use it.
    """

    train: Callable[[Problem, ClientView, Key], Trained]
    num_steps: Callable[[Any], Any]  # number of training examples -> steps; works on arrays
    batch_size: int
    train_with_drift: Callable[[Problem, ClientView, Key], Trained] | None = None


class Memory(NamedTuple):
    """A quantity that a client keeps between rounds."""

    init: Callable[[Variables], PyTree]
    update: Measure  # view.memory holds the old value


class Summary(NamedTuple):
    """A summary of the reports of a cohort, which the server publishes to all clients.

    Args:
        init: (problem, shared variables, number of clients, cohort size) -> the first value.
        update: (old value, the reports of its name as a stack, view) -> new value.
    """

    init: Callable[[Problem, Variables, int, int], PyTree]  # (problem, shared, num_clients, cohort_size)
    update: Callable[[PyTree, UpdateStack, ServerView], PyTree]


class Aggregator(NamedTuple):
    """The rule by which the server combines updates.

    Args:
        init: (shared variables, number of clients) -> the first state.
        update: (problem, state, view) -> (decision, new state). It reads the updates by the methods of `view.updates`;
            which methods it calls decides whether they are stacked.
        gram_edit: For rules that replace each update by a combination of all that depends on inner products alone:
            (Gram matrix K of the updates, view) -> C in float64, where client i's edited update is
            sum_j C_ij u_j. Diagnostics read it.
        is_uniform_mean: Whether the update is the plain mean over the clients present, each with the same weight;
            stages of the uplink that act on sums need it.
        is_selective: Whether the updates of some of the clients present are left out whole; error feedback warns of it.
        extrapolation: Up to which multiple of an update that is the same for all clients the first aggregate of a run
            may go; above 1 for rules that step beyond what clients agree on, such as FedDyn's.
        named_clients: Pairs (option, ids that it names), as ("root", (0,)). These clients must have training examples.
    """

    init: Callable[[Variables, int], PyTree]  # (shared, num_clients)
    update: Callable[[Problem, PyTree, ServerView], tuple[Aggregate, PyTree]]
    gram_edit: Callable[[Gram, ServerView], Gram] | None = None
    is_uniform_mean: bool = False
    is_selective: bool = False
    extrapolation: float = 1.0
    named_clients: tuple[tuple[str, tuple[int, ...]], ...] = ()


class Weighting(NamedTuple):
    """Weights of clients that sum to one over those present and are zero for the others.

    Args:
        init: (shared variables, number of clients) -> the first state.
        update: (state, view) -> (weights, new state).
        per_client: For weights that are proportional to a function of each upload alone, that function; their sum
            can then be computed while clients train.
    """

    init: Callable[[Variables, int], PyTree]
    update: Callable[[PyTree, ServerView], tuple[Float[Array, "cohort"], PyTree]]
    per_client: Callable[[Upload], Float[Array, ""]] | None = None


class StageView(NamedTuple):
    """What one client knows when it sends its update through a stage of the uplink."""

    received: Broadcast
    public: PyTree  # what the server told clients for this stage
    memory: PyTree  # what the client keeps for this stage, () if nothing
    client: Int[Array, ""]  # its id
    num_clients: int  # all clients of the run, with training examples or without
    key: Key  # of (seed, round, client id, stage)
    round_key: Key  # of (seed, round, stage): the same for all clients and the server, so that sending it costs nothing


class Sent(NamedTuple):
    """What a client sends by a stage, and keeps for its next round.

    Args:
        update: The update as the server decodes it.
        memory: The new value of what the client keeps.
        side: Numbers that are summed over the clients present, and that the stage's `receive` is given.
    """

    update: Variables
    memory: PyTree = ()
    side: Mapping[str, Array] = MappingProxyType({})


class ReceiveView(NamedTuple):
    """What the server knows when a stage of the uplink acts on the combined update."""

    server: ServerView
    side: Named  # the sums of `Sent.side` over the clients present
    state: PyTree  # the state of the stage
    key: Key  # of (seed, round, stage), apart from all keys of clients
    num_clients: int  # all clients of the run, with training examples or without
    expected_clients: float  # of a round, the same whoever came


def _nothing() -> Mapping:
    return MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A step between a client's finished update and the server: clipping, compression, noise, an attack.

    What stages leave is what the server receives: aggregators, diagnostics and sums read nothing else.

    Args:
        send: (update, view) -> what one client sends. None sends the update as it is.
        collections: The collections that `send` is given: "params", while all others are sent as they are, or "all".
        init: Shared variables -> what a client keeps for this stage.
        init_server: (shared variables, number of clients, cohort size) -> the first state of the stage on the server.
        publish: State on the server -> what clients are told of it.
        receive: (combined update, view) -> (the update that the server optimizer is given, new state). It runs after
            the aggregator, and sees the collections that `send` sees.
        corrupt: (updates of the cohort [cohort, ...], view) -> what arrives in their place, for attackers that know
            what the others send. The updates are then stacked, whatever the aggregator.
        bits: (bits of one client's update as it enters, the update's shapes) -> bits as it leaves.
        attackers: (client ids, number of clients of the run) -> which of them lie in this stage; diagnostics read it.
        check: Raises InputError for algorithms that the stage cannot serve.
        hides_examples: Whether what clients hold is kept from the server, besides their updates. Aggregators that read
            numbers of examples are refused, and inputs that are standardized by moments of clients' examples.
        steps_without_reports: Whether the server steps in rounds in which no client reported, too.
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
    hides_examples: bool = False
    steps_without_reports: bool = False
    named_clients: tuple[tuple[str, tuple[int, ...]], ...] = ()


class CorruptView(NamedTuple):
    """What attackers know who know everything."""

    received: Broadcast
    cohort: Int[Array, "cohort"]  # client ids
    is_present: Bool[Array, "cohort"]
    num_clients: int  # all clients of the run
    state: PyTree  # the state of the stage on the server
    key: Key  # of (seed, round, stage), apart from all keys of honest clients


def _identity(model: Model) -> Model:
    return model


def shared_variables(server: ServerState) -> Variables:
    """The shared variables as they are sent."""
    return server.shared


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A federated algorithm: objective, local training, aggregation, and sharing.

    Two papers are combined by `dataclasses.replace(fedga(), sharing=sharing.batch_norms)`. Hyper-parameters, which the
    functions close over, may be tracers.
    """

    objective: tuple[Term, ...]  # minimized: the sum of its terms
    local_update: LocalUpdate
    aggregator: Aggregator
    server_optimizer: optax.GradientTransformation = field(default_factory=lambda: optax.sgd(1.0))
    sharing: Sharing = share_all
    adapt: Callable[[Model], Model] = _identity
    memory: Mapping[str, Memory] = field(default_factory=_nothing, hash=False)
    survey: Mapping[str, Measure] = field(default_factory=_nothing, hash=False)  # measured and sent before training
    reports: Mapping[str, Measure] = field(default_factory=_nothing, hash=False)  # measured and sent after training
    published: Mapping[str, Summary] = field(default_factory=_nothing, hash=False)  # by the report that is summarized
    uplink: tuple[Stage, ...] = ()  # applied in this order to every client's update
    evaluated: Callable[[ServerState], Variables] = shared_variables  # which shared variables are tested and exported
    personalize: Personalization | None = None  # None evaluates the shared leaves with the client's own personal leaves
