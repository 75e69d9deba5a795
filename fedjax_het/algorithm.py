"""Algorithms as data: named slots filled with pure functions of a view."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import optax
from jaxtyping import Float

from fedjax_het.sharing import Sharing, share_all
from fedjax_het.types import (
    Aggregate,
    Array,
    Batch,
    ClientView,
    ForwardPass,
    Gram,
    Key,
    Model,
    Params,
    Problem,
    PyTree,
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


class OfRun(NamedTuple):
    """Annotation of an argument of a factory whose default, in a config, is a setting of the run.

    rounds: Annotated[int, OfRun("rounds")] = 40
    """

    setting: str


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
    """

    init: Callable[[Variables, int], PyTree]  # (shared, num_clients)
    update: Callable[[Problem, PyTree, ServerView], tuple[Aggregate, PyTree]]
    gram_edit: Callable[[Gram, ServerView], Gram] | None = None


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


def _identity(model: Model) -> Model:
    return model


def _nothing() -> Mapping:
    return MappingProxyType({})


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
    memory: Mapping[str, Memory] = field(default_factory=_nothing)
    survey: Mapping[str, Measure] = field(default_factory=_nothing)  # measured and sent before training
    reports: Mapping[str, Measure] = field(default_factory=_nothing)  # measured and sent after training
    published: Mapping[str, Summary] = field(
        default_factory=_nothing
    )  # keyed by the report or answer that is summarized
