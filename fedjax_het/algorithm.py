"""An algorithm is data: named slots filled with pure functions of a view."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import optax

from fedjax_het.sharing import Sharing, share_all
from fedjax_het.types import (
    Aggregate,
    Array,
    Batch,
    ClientView,
    ForwardPass,
    Key,
    Model,
    Params,
    PyTree,
    ServerView,
    Trained,
    UpdateStack,
    Upload,
    Variables,
)

Problem = Any  # engine.problem.LocalProblem; named here so that the floors stay apart
Term = Callable[[ForwardPass], Array]
"""One summand of the objective; it carries its own weight."""
GradientRule = Callable[[Problem, Params, Variables, Batch, ClientView, Key], tuple[tuple[Array, Variables], Params]]
"""((loss, new state), gradient) of one batch at (params, state)."""
Measure = Callable[[Problem, ClientView], PyTree]


class OfRun(NamedTuple):
    """Marks an argument of a factory that a config, where it leaves it out, takes from the run's own setting.

    rounds: Annotated[int, OfRun("rounds")] = 40
    """

    setting: str


class LocalUpdate(NamedTuple):
    """How a client trains, and how many steps of how many examples that is.

    watched: the same training, whose metrics also tell "drift", the mean over its steps of |w_k - w|^2, from the
    weights w that the round began with; diagnostics ask for it.
    """

    train: Callable[[Problem, ClientView, Key], Trained]
    num_steps: Callable[[Any], Any]  # number of training examples -> steps; works on arrays
    batch_size: int
    train_with_drift: Callable[[Problem, ClientView, Key], Trained] | None = None


class Memory(NamedTuple):
    """What a client keeps between rounds."""

    init: Callable[[Variables], PyTree]
    update: Measure  # view.memory holds the old value


class Summary(NamedTuple):
    """How the reports of a cohort become one value, published to everyone.

    update: (old, the reports of its name as a stack, view) -> new.
    """

    init: Callable[[Problem, Variables, int, int], PyTree]  # (problem, shared, num_clients, cohort_size)
    update: Callable[[PyTree, UpdateStack, ServerView], PyTree]


class Aggregator(NamedTuple):
    """How the server combines what it received.

    update: reads the updates by the methods of `view.updates`; what it calls decides whether they are stacked.
    gram_edit: where each update is replaced by a combination of all, by inner products alone: (Gram matrix K [m, m] of
    the updates, view) -> C [m, m], client i's edited update being sum_j C_ij u_j; in float64. Diagnostics read it.
    """

    init: Callable[[Variables, int], PyTree]  # (shared, num_clients)
    update: Callable[[Problem, PyTree, ServerView], tuple[Aggregate, PyTree]]
    gram_edit: Callable[[Array, ServerView], Array] | None = None


class Weighting(NamedTuple):
    """[cohort] weights that sum to one over the clients that are present, and are zero elsewhere.

    per_client: where the weights are proportional to a function of each upload alone, that function; the weighted sum
    can then run while clients train.
    """

    init: Callable[[Variables, int], PyTree]
    update: Callable[[PyTree, ServerView], tuple[Array, PyTree]]
    per_client: Callable[[Upload], Array] | None = None


def _identity(model: Model) -> Model:
    return model


def _nothing() -> Mapping:
    return MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A federated algorithm: who minimises what, how, and what is shared.

    Mixing two papers is `dataclasses.replace(fedga(), sharing=sharing.batch_norms)`. An Algorithm is a program, closed
    over by the trace: its hyper-parameters may be tracers.
    """

    objective: tuple[Term, ...]  # minimised: the sum of its terms
    local_update: LocalUpdate
    aggregator: Aggregator
    server_optimizer: optax.GradientTransformation = field(default_factory=lambda: optax.sgd(1.0))
    sharing: Sharing = share_all
    adapt: Callable[[Model], Model] = _identity
    memory: Mapping[str, Memory] = field(default_factory=_nothing)
    survey: Mapping[str, Measure] = field(default_factory=_nothing)  # asked before training
    reports: Mapping[str, Measure] = field(default_factory=_nothing)  # sent with the update
    published: Mapping[str, Summary] = field(default_factory=_nothing)  # keyed by the question or report it condenses
