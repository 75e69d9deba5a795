"""Asynchronous rounds: the server steps as soon as some updates have arrived; clients train on older models.

Durations do not depend on weights, so all events are precomputed (`event_schedule.py`). A round is one server step, and
its cohort the clients whose updates have arrived.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Float, Int

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.round.participation import Participation
from fedjax_het.engine.round.timing import Timing
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Broadcast, Variables
from fedjax_het.validation import Count, CountOrZero, NonNegative, Positive, PositiveFraction, validate_arguments


class Asynchronous(NamedTuple):
    """A rule of asynchronous rounds, in which clients and server do not wait for each other.

    At most `concurrency` clients train at any time. As soon as there is room for a whole cohort, the participation
    rule of the run samples one, and its clients start from the current server model; clients that are still busy, or
    whose update the server has not used yet, are skipped. The server steps with the algorithm's aggregator whenever
    `buffer_size` updates have arrived. If clients and server act at the same instant, the server acts first, so the
    run is synchronous if cohort size, buffer and concurrency are equal.

    The staleness of an update is the number of server steps since the client started.

    Args:
        concurrency: The maximum number of clients that train at the same time, the papers' M.
        buffer_size: The number of updates per server step, the papers' K.
        weight: Maps the staleness of an update to the factor that multiplies it on arrival.
        mixes_models: Whether clients send models: the update is then the difference to the current server model,
            instead of to the model that the client started from.
        max_staleness: Updates with larger staleness are dropped. None: no limit.
    """

    concurrency: int
    buffer_size: int
    weight: Callable[[Int[Array, ""]], Float[Array, ""]]
    mixes_models: bool = False
    max_staleness: int | None = None

    @property
    def num_versions(self) -> int:
        """The number of recent broadcasts that clients may have started from."""
        assert self.max_staleness is not None, "the schedule determines it"
        return self.max_staleness + 1

    def arrivals(self, participation: Participation) -> Participation:
        """The participation rule of a server step: the clients whose updates have arrived."""
        return participation._replace(size=lambda num_clients: self.buffer_size, is_everyone=False, mean_size=None)

    def receive(self, update: Variables, started: Broadcast, now: Broadcast) -> Variables:
        """Convert an update to its contribution to the server step that uses it.

        Args:
            update: The update as the client sent it.
            started: The broadcast that the client started from.
            now: The broadcast of the server step.
        """
        if self.mixes_models:
            update = tree.add(update, tree.subtract(started.shared, now.shared))
        return tree.scale(self.weight(now.round - started.round), update)

    def check(
        self,
        algorithm: Algorithm,
        participation: Participation,
        timing: Timing | None,
        num_clients: int,
        num_training: int,
    ) -> None:
        """Raise InputError if the run does not support asynchronous rounds.

        Args:
            algorithm: The algorithm.
            participation: The rule that samples the clients that start together.
            timing: The speed of the clients.
            num_clients: The number of clients.
            num_training: The number of clients that have training examples.
        """
        if timing is None:
            raise InputError(
                "asynchronous: the arrival of updates depends on the clients' speed. Set a timing such as log_normal."
            )
        if timing.deadline is not None:
            raise InputError(
                "asynchronous: the server does not wait, so a deadline has no effect. Omit timing.deadline; "
                "max_staleness drops updates that are too old."
            )
        if algorithm.survey:
            raise InputError(
                f"asynchronous: this algorithm surveys its clients before training ({', '.join(algorithm.survey)}), "
                "which requires answers from all of them. Use another algorithm, or train synchronously."
            )
        if any(stage.steps_without_reports for stage in algorithm.uplink):
            raise InputError(
                "asynchronous: noise at the server has no known guarantee if earlier steps determine who takes part "
                "in a step. Use gaussian_mechanism with noise_at='clients', or train synchronously."
            )
        if participation.overflow or participation.depends_on_round or participation.reads_reports:
            raise InputError(
                "asynchronous: this participation rule samples clients per round, but there are no rounds. Use uniform "
                "(cohort_size), all clients or bernoulli (availability)."
            )
        if self.buffer_size > self.concurrency:
            raise InputError(
                f"asynchronous: buffer_size is {self.buffer_size} and concurrency {self.concurrency}. The server "
                "cannot wait for more updates than there are clients in training."
            )
        if self.concurrency > num_training:
            raise InputError(
                f"asynchronous: concurrency is {self.concurrency}, but {num_training} clients have training examples. "
                "Lower it."
            )
        if (size := participation.size(num_clients)) > self.concurrency:
            raise InputError(
                f"asynchronous: {size} clients would start together, but concurrency is {self.concurrency}. Lower "
                "cohort_size; 1 replaces each client as soon as it has finished."
            )


@validate_arguments
def fedbuff(
    concurrency: Count, buffer_size: Count = 10, exponent: NonNegative = 0.5, max_staleness: CountOrZero | None = None
) -> Asynchronous:
    """Buffered asynchronous aggregation, FedBuff: the server steps when K updates have arrived.

        w <- w + eta_g A({s(tau_i) u_i}),    s(tau) = (1 + tau)^-a

    with the algorithm's aggregator A and server learning rate eta_g. The paper's A is the plain mean,
    weighting="uniform". With cohort_size=1, each client is replaced as soon as it has finished, as in the paper.

    Args:
        concurrency: The maximum number of clients that train at the same time, the paper's M.
        buffer_size: The number of updates per server step, K (default 10, as the paper recommends).
        exponent: a (default 0.5, as in the paper). 0: ignore staleness.
        max_staleness: Updates with larger staleness are dropped (default None, no limit).

    Raises:
        InputError: A number is out of range.

    References:
        Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022.
    """
    return Asynchronous(concurrency, buffer_size, _polynomial(exponent), False, max_staleness)


@validate_arguments
def fedasync(
    concurrency: Count,
    mixing: PositiveFraction = 0.6,
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial",
    a: Positive | None = None,
    b: CountOrZero | None = None,
    max_staleness: CountOrZero | None = None,
) -> Asynchronous:
    """Asynchronous federated optimization, FedAsync: the server mixes every model that arrives into its own.

        w <- (1 - alpha s(tau)) w + alpha s(tau) w_i

        constant: s(tau) = 1;  polynomial: (1 + tau)^-a;  hinge: 1 if tau <= b, else 1 / (a (tau - b) + 1)

    This is the step if the algorithm's aggregator is a mean and its server optimizer is plain. The paper's clients
    train with FedProx's proximal term.

    Args:
        concurrency: The maximum number of clients that train at the same time.
        mixing: alpha (default 0.6, as in the paper).
        staleness: The function s (default "polynomial").
        a: Default None, the paper's 0.5 for "polynomial" and 10 for "hinge".
        b: Default None, the paper's 4; only for "hinge".
        max_staleness: Updates with larger staleness are dropped (paper: 4 or 16; default None, no limit).

    Raises:
        InputError: A number is out of range, or would have no effect.

    References:
        Xie, Koyejo, Gupta, Asynchronous Federated Optimization, 2019.
    """
    if (a is not None and staleness == "constant") or (b is not None and staleness != "hinge"):
        name = "b" if b is not None else "a"
        raise InputError(f"{name}: has no effect with staleness='{staleness}'. Remove it.")
    weights = {"constant": _polynomial(0.0), "polynomial": _polynomial(0.5 if a is None else a)}
    weight = weights.get(staleness) or _hinge(10.0 if a is None else a, 4 if b is None else b)
    return Asynchronous(concurrency, 1, lambda age: mixing * weight(age), True, max_staleness)


ASYNCHRONOUS = {"fedbuff": fedbuff, "fedasync": fedasync}
"""Rules of asynchronous rounds by their config names."""


def _polynomial(exponent: float) -> Callable[[Array], Array]:
    return lambda age: (1.0 + age) ** -exponent


def _hinge(slope: float, delay: int) -> Callable[[Array], Array]:
    return lambda age: 1 / (slope * jnp.maximum(age - delay, 0) + 1)
