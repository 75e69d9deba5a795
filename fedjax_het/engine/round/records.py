"""The constants of a run's rounds, and the results of a round."""

from typing import NamedTuple

from jaxtyping import Bool, Float, Int

from fedjax_het.algorithm import Algorithm
from fedjax_het.data.phases import Phases
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.round.asynchronous import Asynchronous
from fedjax_het.engine.round.participation import Participation
from fedjax_het.engine.round.timing import Timing
from fedjax_het.problem import Problem
from fedjax_het.types import Array, Broadcast, ClientGroups, Named, Upload, Variables


class RoundSpec(NamedTuple):
    """The constants of all rounds of a run."""

    algorithm: Algorithm
    problem: Problem
    num_clients: int
    num_training: int  # clients with training examples
    num_examples: Int[Array, "clients"]  # training examples
    participation: Participation
    timing: Timing | None
    asynchronous: Asynchronous | None
    layout: Layout
    phases: Phases | None = None  # of the clients' data
    num_opening: int = 0  # rounds in which all clients answer the survey, and nobody trains

    @property
    def cohort_size(self) -> int:
        return self.participation.size(self.num_clients)

    @property
    def groups(self) -> ClientGroups | None:
        return self.problem.model.groups or self.algorithm.local_update.groups

    @property
    def num_versions(self) -> int:
        """The number of broadcasts kept by the server."""
        return self.asynchronous.num_versions if self.asynchronous else 1

    @property
    def has_clock(self) -> bool:
        return self.timing is not None or self.asynchronous is not None


class RoundMetrics(NamedTuple):
    """The metrics of one round."""

    loss: Float[Array, ""]  # training loss, weighted by examples; NaN if no client reported
    num_reporting: Int[Array, ""]  # uploads that the server used
    num_nonfinite: Int[Array, ""]  # dropped uploads
    cohort: Int[Array, "cohort"]  # ids of the selected clients
    is_nonfinite: Bool[Array, "cohort"]  # whether the upload was dropped
    is_rejected: Bool[Array, ""]  # finite uploads with a nonfinite aggregate: all were dropped
    num_late: Int[Array, ""] | None = None  # clients that missed the deadline; None without a timing
    seconds: Float[Array, ""] | None = None  # duration on the virtual clock
    staleness: Int[Array, "cohort"] | None = None  # server steps since the client started; None if synchronous


class RoundMessages(NamedTuple):
    """The messages between server and clients in a round."""

    received: Broadcast
    answers: Named  # leaves [cohort, ...]
    uploads: Upload  # leaves [cohort, ...]
    replies: Variables  # leaves [cohort, ...]
