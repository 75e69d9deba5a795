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
    """How [cohort, ...] reports become one value, published to everyone.

    summand: (one client's report, its whole upload) -> what it adds to a sum; where both are zeros, zeros. With it
    `update` is handed the sum over those present instead, made while clients train, and no stack is kept for it.
    """

    init: Callable[[Problem, Variables, int, int], PyTree]  # (problem, shared, num_clients, cohort_size)
    update: Callable[[PyTree, PyTree, ServerView], PyTree]  # (old, the reports or their sum, view)
    summand: Callable[[PyTree, Upload], PyTree] | None = None


class Aggregator(NamedTuple):
    """How the server combines what it received.

    summand: one client's upload -> what it adds to a sum; where it is zeros, zeros. The sum over those present is made
    while clients train and handed on as `view.summed`; an aggregator that reads no more of the updates than that
    leaves no stack of client models behind.
    pack: one client's update -> the form in which updates are stacked; zeros where it is zeros. Sums made on the way
    are of the update itself.
    revision: where each update is replaced by a combination of all, by inner products alone: (Gram matrix K [m, m] of
    the updates, view) -> C [m, m], client i's revised update being sum_j C_ij u_j; in float64. Diagnostics read it.
    """

    init: Callable[[Variables, int], PyTree]  # (shared, num_clients)
    update: Callable[[Problem, PyTree, ServerView], tuple[Aggregate, PyTree]]
    summand: Callable[[Upload], PyTree] | None = None
    pack: Callable[[Variables], Variables] | None = None
    revision: Callable[[Array, ServerView], Array] | None = None


class Weighting(NamedTuple):
    """[cohort] weights that sum to one over the clients that are present, and are zero elsewhere.

    weigh: where they are a function of each upload alone but for a common factor, that function.
    """

    init: Callable[[Variables, int], PyTree]
    update: Callable[[PyTree, ServerView], tuple[Array, PyTree]]
    weigh: Callable[[Upload], Array] | None = None


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
