"""Records of a round: messages, states, and the views that algorithms read; see `fedjax_het.examples` for examples.

Axes: leaves of one client have no client axis; what the server sees is stacked, ``[cohort, ...]``, and what is kept
between rounds ``[clients, ...]``. Shapes are jaxtyping's: ``*clients`` is one such axis, or none for a single client.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Integer

from fedjax_het.examples import Examples, Phase, PublicInputs, Rows

Array = jax.Array
HostArray = jax.Array | np.ndarray  # on the device, or on the host
Key = jax.Array  # a typed key, jax.random.key
Gram = Float[Array, "cohort cohort"]  # inner products <u_i, u_j> of updates, or coefficients of their combinations
PyTree = Any
Params = PyTree
Variables = dict[str, PyTree]  # Flax collections: {"params": ..., "batch_stats": ..., "amplitude": ...}
Named = dict[str, PyTree]  # an algorithm's own quantities, by name


class ClientData(NamedTuple):
    """One client's data: indices into the examples, never copies. `examples` never has a client axis."""

    examples: Examples
    train: Rows
    valid: Rows
    test: Rows  # while clients train, a placeholder that refuses to be read


class Batch(NamedTuple):
    """A batch of prepared examples."""

    inputs: Float[Array, "batch ..."] | Int[Array, "batch length"]  # as the model takes them: numbers or tokens
    labels: Integer[Array, "batch *pixels"] | Float[Array, "batch *targets"]
    mask: Float[Array, "batch"]  # 1 = an example, 0 = padding


class Broadcast(NamedTuple):
    """The message from the server to each client of the cohort, the same for all."""

    round: Int[Array, ""]  # from 0
    shared: Variables
    published: Named
    uplink: tuple[PyTree, ...] = ()  # what each stage of the uplink tells clients; () without stages
    base: Variables = {}  # the leaves that the server alone changes, see Model
    phase: Phase | None = None  # of the clients' data; None if they never change


class Upload(NamedTuple):
    """The message from a client to the server, which sees leaves [cohort, ...], and the updates as an `UpdateStack`."""

    update: Variables  # trained - received, shared leaves only; {} in a ServerView, which has `updates`
    reports: Named
    num_examples: Float[Array, "*cohort"]
    num_steps: Float[Array, "*cohort"]  # the papers' tau
    model: Int[Array, "*cohort"] | None = None  # the server's model that it trained; None if there is only one


class Aggregate(NamedTuple):
    """The server's decision."""

    update: Variables  # one combined update of the shared leaves
    replies: Variables  # leaves [cohort, ...] written into personal leaves; {} = none
    base: Variables = {}  # an update of the leaves that the server alone changes; {} = none


class ClientState(NamedTuple):
    """The state of all clients, leaves [clients, ...]; on several devices padding rows follow the last client."""

    personal: Variables
    memory: Named
    rounds: Int[HostArray, "*clients"]  # the number of rounds in which the client has reported


class ServerState(NamedTuple):
    """The state of the server."""

    round: Int[Array, ""]
    shared: Variables
    optimizer: PyTree
    aggregator: PyTree
    published: Named
    uplink: tuple[PyTree, ...] = ()  # the state of each stage of the uplink; () without stages
    history: PyTree = ()  # the last broadcasts, leaves [versions, ...], if clients may start from older ones; else ()
    base: Variables = {}  # leaves that the server alone changes
    frozen: Variables = {}  # leaves that never change, which clients have from the start
    participation: PyTree = ()  # what the participation rule knows about the clients; () if it reads no reports


class RunCounters(NamedTuple):
    """Counters over the whole run."""

    reports: Int[Array, ""]  # uploads that the server used
    nonfinite: Int[Array, ""]  # uploads dropped because they, or the result of the server, held NaN or infinity
    seconds: Float[Array, ""] | None = None  # on the virtual clock; None without a timing
    polled: Int[Array, ""] | None = None  # clients that were polled before training; None without polls


Clients = TypeVar("Clients")


class State(NamedTuple, Generic[Clients]):
    """The state of a run between rounds; `clients` is a ClientState, off the device an engine.ClientStore."""

    server: ServerState
    clients: Clients
    counters: RunCounters


class ClientView(NamedTuple):
    """The information of one client in a round, which the slots of an algorithm read."""

    received: Broadcast
    memory: Named  # as it was when the round began
    answers: Named  # what this client measured before training (the survey)
    data: ClientData
    start: Variables  # received.shared merged with the client's own personal leaves
    local: Variables  # == start before training; while it trains, as the epoch began; the trained variables after
    optimizer: PyTree  # () before training, the local optimizer's last state after
    metrics: Mapping[str, Float[Array, ""]]  # {} before training, what the local update measured after
    num_steps: Float[Array, ""]  # 0 before training
    client: Int[Array, ""] | int = 0  # its id
    max_steps: Int[Array, ""] | None = None  # maximum number of steps in this round; None: no limit
    results: Named = {}  # {} before training, `Trained.results` after
    model: Int[Array, ""] | None = None  # the server's model that it received; None if there is only one
    models: Variables | None = None  # all models of the server, [models, ...], in the survey; None otherwise


Reads = Literal["sums", "tensors", "gram"]
"""How updates are read: declared sums; also tensors and combinations, float32; or also inner products, float64."""


class WeightedSum(NamedTuple):
    """A weighted sum over the clients of a cohort, declared by the aggregator or summary that reads it.

    Args:
        per_client: One client's upload -> a number >= 0 that its weight is proportional to; the sum is then computed
            during training. None: the weights depend on several uploads, and the updates are stacked.
        is_chosen: Path of a leaf, "params/conv_0/kernel" -> whether it is summed. None: all leaves.
        source: The summed quantity: "updates", or the "reports" of a summary.
    """

    per_client: Callable[[Upload], Float[Array, ""]] | None = None
    is_chosen: Callable[[str], bool] | None = None
    source: Literal["updates", "reports"] = "updates"


class UpdateStack(Protocol):
    """One tree for each client of a cohort, their updates or one of their reports; zeros for absent clients.

    Its reader declares how it reads the updates, by `reads` and `sums`; other reads raise an InputError.
    """

    def weighted_sum(self, weights: Float[Array, "cohort"], declared: WeightedSum) -> PyTree:
        """Return sum_i weights_i u_i of the declared leaves; weights are 0 for absent clients."""

    def gram(self) -> Gram:
        """Return the inner products <u_i, u_j> over all leaves, in float64."""

    def products(self, reference: PyTree) -> Float[Array, "cohort"]:
        """Return the inner products <u_i, v> with a tree like one client's, in float64."""

    def combine(self, coefficients: Float[Array, "cohort"]) -> PyTree:
        """Return sum_i c_i u_i for coefficients of any kind, such as those found from `gram`."""

    def tensors(self) -> PyTree:
        """Return the leaves [cohort, ...], in float32, for rules that sort or choose coordinates."""

    def select(self, is_chosen: "Callable[[str], bool]") -> "UpdateStack":
        """Return the stack of the leaves whose path, "params/conv_0/kernel", is chosen."""

    def by_tensor(self) -> "UpdateStack":
        """Return the stack read leaf by leaf: `gram` is [leaves, cohort, cohort], `combine` takes [leaves, cohort]."""


class ServerView(NamedTuple):
    """The information of the server in a round, which aggregators, weightings and summaries read."""

    received: Broadcast  # what the clients were sent
    uploads: Upload  # leaves [cohort, ...]; zeros where a client did not report; `update` is {}
    cohort: Int[Array, "cohort"]  # client ids
    is_present: Bool[Array, "cohort"]  # the client answered, has examples, and all that it sent was finite
    num_clients: int  # N, clients that have training examples; the others count in no mean over all clients
    updates: UpdateStack  # what the clients sent
    key: Key | None = None  # of (seed, round), independent of all keys of clients; None during the survey
    public: PublicInputs | None = None


class RoundSnapshot(NamedTuple):
    """The whole of a round, for diagnostics. Leaves of clients are [cohort, ...]."""

    view: ServerView  # what the server saw
    data: ClientData  # of the cohort; test is None where no client has test examples
    personal: Variables  # what the clients keep after the round
    shared: Variables  # the server's after the round
    gram_edit: Callable[[Gram, ServerView], Gram] | None  # see Aggregator
    key: Key
    is_attacker: Bool[Array, "cohort"] | None  # whether the client attacks in the uplink; None: no attack


class Trained(NamedTuple):
    """The result of a local update."""

    variables: Variables
    num_steps: Float[Array, ""]
    optimizer: PyTree
    metrics: Mapping[str, Float[Array, ""]]  # of this client's training; "loss" is its mean over the round
    results: Named = {}  # what else was trained, such as a model of the client's own, for its memory


class Context(NamedTuple):
    """The context of a forward pass."""

    mask: Float[Array, "batch"]  # statistics over the batch exclude padding
    round: Int[Array, ""]
    key: Key
    is_training: bool


class Outputs(NamedTuple):
    """The outputs of a model. Features are [batch, feature], or [batch, height, width, feature]."""

    features: Float[Array, "batch ..."]
    logits: Float[Array, "batch *pixels class"]
    extras: Named


class Leaf(NamedTuple):
    """A leaf of a model, by its path, "params/block_0/norm/scale", and the class of its layer; None if it has none."""

    path: str
    layer: type | None


LeafRule = Callable[[Leaf], bool]  # leaf -> whether it is chosen; see `fedjax_het.sharing`


ModelPart = Mapping[str, tuple[int, ...]]
"""The part of the model that a client receives, trains and sends: the shapes of its parameters, by path."""


class ClientGroups(NamedTuple):
    """Groups of clients whose networks differ.

    Args:
        size: The number of groups.
        table: Client i is in group table[i mod len(table)].
        num_clients: The number of clients, if the table is for no other number.
    """

    size: int
    table: tuple[int, ...]
    num_clients: int | None = None

    def assign(self, client: HostArray | int) -> HostArray | int:
        """Ids of clients -> the numbers of their groups, on the host for ids on the host."""
        place = client % len(self.table)
        return jax.numpy.asarray(self.table)[place] if isinstance(client, jax.Array) else np.array(self.table)[place]


class Model(NamedTuple):
    """A network as four pure functions, and the leaves that clients do not train.

    init(key, inputs) -> variables.
    encode(variables, inputs, context) -> ((features, extras), the collections besides params, new).
    classify(params, features) -> logits, from the head at ``params/classifier``.
    layers(inputs) -> {path of a layer, "block_0/norm": its class}; sharing rules read it.

    Leaves that a rule in `frozen` chooses never change; there is one copy for all clients, and it is never sent. Those
    that a rule in `base` chooses are changed by the server alone, which sends them. The others are trained.
    published: Names and configuration in published files, a `fedjax_het.models.Published`; None if there are none.
    groups: Groups of clients with networks of their own, see `fedjax_het.models.grouped`.
    term_scale(variables, layer, name) -> s of a low-rank term s A B, by its layer and name; None without such terms.
    narrowed(width) -> the model with ceil(width h), at least one, of the h units of every hidden layer; None: no other.
    """

    init: Callable[[Key, Array], Variables]
    encode: Callable[[Variables, Array, Context], tuple[tuple[Array, Named], Variables]]
    classify: Callable[[Params, Array], Array]
    layers: Callable[[Array], Mapping[str, type]]
    frozen: tuple[LeafRule, ...] = ()
    base: tuple[LeafRule, ...] = ()
    published: Any = None
    term_scale: Callable[[Variables, str, str], Array | float] | None = None
    narrowed: "Callable[[float], Model] | None" = None
    groups: ClientGroups | None = None
