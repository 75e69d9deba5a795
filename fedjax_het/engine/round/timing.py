"""Client device speeds and round deadlines: partial work, late clients, and a virtual clock."""

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het._internal.number_table import read_client_table
from fedjax_het.errors import InputError
from fedjax_het.types import Array
from fedjax_het.validation import (
    LARGEST_COUNT,
    Range,
    Seed,
    refuse_without_effect,
    validate_arguments,
)

Late = Literal["partial", "drop"]
# With these bounds and those of sigma, times stay finite and above 0 in float32.
Seconds = Annotated[float, Range(0, 1e9)]
PositiveSeconds = Annotated[float, Range(1e-9, 1e9)]


class Timing(NamedTuple):
    """How long each client takes, and how clients that exceed the deadline are treated.

    A client's round takes message_seconds + (number of local steps) step_seconds on the virtual clock, regardless of
    the simulation's own run time. A round lasts until the slowest participating client has finished, or until its
    deadline if a client is late. Clients that do not report take no time.

    Args:
        seconds: (client id, number of clients) -> (seconds of one local step, seconds of download and upload).
        deadline: Seconds per round; None: no deadline.
        late: "partial": a late client performs only as many of its first local steps as fit, and is left out if none
            fit. "drop": a client that cannot finish all of its steps is left out.
        check: Raises InputError if the speeds do not match the number of clients.
    """

    seconds: Callable[[Array, int], tuple[Array, Array]]
    deadline: float | None = None
    late: Late = "partial"
    check: Callable[[int], None] = lambda num_clients: None

    def count_steps_in_time(self, client: Array, num_clients: int) -> Array:
        """The number of local steps that a client completes before the deadline, [] int32."""
        if self.deadline is None:
            return jnp.int32(LARGEST_COUNT)
        step, message = self.seconds(client, num_clients)
        left = jnp.maximum(self.deadline - message, 0)
        # Steps that take no time, and more steps than int32 can count.
        steps = jnp.where(left >= step * LARGEST_COUNT, LARGEST_COUNT, jnp.floor(left / jnp.where(step > 0, step, 1)))
        return jnp.where(self.deadline >= message, jnp.minimum(steps, LARGEST_COUNT - 1).astype(jnp.int32), 0)

    def measure(self, client: Array, num_clients: int, num_steps: Array) -> Array:
        """The duration of a client's round of `num_steps` local steps in seconds."""
        step, message = self.seconds(client, num_clients)
        return message + step * num_steps

    def duration(self, seconds: Array, is_late: Array) -> Array:
        """The duration of a round in seconds, given each client's seconds [cohort] and lateness."""
        longest = jnp.max(jnp.where(is_late, 0, seconds), initial=0)
        return longest if self.deadline is None else jnp.where(jnp.any(is_late), self.deadline, longest)


@validate_arguments
def log_normal(
    step_seconds: PositiveSeconds = 1.0,
    message_seconds: Seconds = 0.0,
    sigma: Annotated[float, Range(0, 5)] = 0.5,
    deadline: PositiveSeconds | None = None,
    late: Late = "partial",
    speed_seed: Seed = 0,
) -> Timing:
    """Speeds that differ between clients by a log-normal factor, constant over rounds.

        seconds of client i = exp(sigma z_i) (message_seconds + num_steps step_seconds),    z_i ~ N(0, 1)

    The factor is a function of (speed_seed, client id), independent of the seed of the run.

    Args:
        step_seconds: Seconds per local step of the median client.
        message_seconds: Total download and upload seconds of the median client.
        sigma: Standard deviation of the log factor, at most 5. With 0.5, one client in forty is 2.7 times slower.
        deadline: Seconds per round (default None, no deadline).
        late: "partial" or "drop", see `Timing`.
        speed_seed: The seed of the factors.

    Raises:
        InputError: A number is out of range.
    """

    _check_late(deadline, late)
    if sigma == 0:
        refuse_without_effect(log_normal, "with sigma=0", speed_seed=speed_seed)

    def seconds(client: Array, num_clients: int) -> tuple[Array, Array]:
        factor = jnp.exp(sigma * jax.random.normal(jax.random.fold_in(make_key(speed_seed), client), ()))
        return factor * step_seconds, factor * message_seconds

    return Timing(seconds, deadline, late)


@validate_arguments
def from_file(path: str, deadline: PositiveSeconds | None = None, late: Late = "partial") -> Timing:
    """Speeds from a CSV file with the columns client, step_seconds, message_seconds: one line per client.

    Args:
        path: The file. Clients are numbered from 0; every client of the run needs a line.
        deadline: Seconds per round (default None, no deadline).
        late: "partial" or "drop", see `Timing`.

    Raises:
        InputError: The file cannot be read, or a line is malformed.
    """
    _check_late(deadline, late)
    columns = {"step_seconds": PositiveSeconds, "message_seconds": Seconds}
    speeds = np.array(read_client_table(path, columns, "timing"), np.float32)

    def check(num_clients: int) -> None:
        if num_clients > len(speeds):
            raise InputError(
                f"timing: '{path}' has the speeds of {len(speeds)} clients, but there are {num_clients}. Add a line "
                "for each client, or use fewer clients."
            )

    def seconds(client: Array, num_clients: int) -> tuple[Array, Array]:
        own = jnp.asarray(speeds[:num_clients])[client]
        return own[0], own[1]

    return Timing(seconds, deadline, late, check)


TIMINGS = {"log_normal": log_normal, "from_file": from_file}
"""Timings by their config names."""


def _check_late(deadline: float | None, late: Late) -> None:
    if deadline is None:
        refuse_without_effect(log_normal, "without a deadline", late=late)
