"""The schedule of asynchronous rounds: the updates that arrive for each server step, from an event queue."""

import functools
import heapq
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from fedjax_het.engine.round.asynchronous import Asynchronous
from fedjax_het.engine.round.participation import Participation, derive_keys
from fedjax_het.errors import InputError
from fedjax_het.types import Array, HostArray, Key

_DRAWN_AT_ONCE = 1 << 8  # clients
_MAX_EMPTY_DRAWS = 100_000  # consecutive empty draws after which no client is expected to start


class EventSchedule(NamedTuple):
    """The updates of each server step, ordered by when their clients were drawn.

    For several runs, leaves [runs, rounds, ...]; for a single step, without these axes.
    """

    clients: Int[HostArray, "*runs rounds buffer"]  # ids
    start: Int[HostArray, "*runs rounds buffer"]  # the number of server steps when the client started
    draw: Int[HostArray, "*runs rounds buffer"]  # the number of the client's draw
    num_late: Int[HostArray, "*runs rounds"]  # dropped stale updates since the previous step
    seconds: Float[HostArray, "*runs rounds"]  # since the previous step, on the virtual clock

    def step(self, number: Array) -> "EventSchedule":
        """The events of a step of a run."""
        return jax.tree.map(lambda x: jnp.asarray(x)[number], self)


def make_schedule(
    rule: Asynchronous,
    participation: Participation,
    key: Key,
    num_clients: int,
    durations: Float[np.ndarray, "clients"],
    rounds: int,
) -> EventSchedule:
    """Compute the events of a run.

    The schedule of fewer rounds is a prefix of this one.

    Args:
        rule: The rule of asynchronous rounds.
        participation: The rule that samples the clients that start together.
        key: The key of the run; the n-th draw is that of round n of a synchronous run.
        num_clients: The number of clients.
        durations: Seconds per round of each client, the same in all rounds; infinity for clients that never train.
        rounds: The number of server steps.

    Raises:
        InputError: No client reports after some time.
    """
    draw, size = _drawer(participation, key, num_clients), participation.size(num_clients)
    can_start = np.isfinite(durations)  # False while training or with an update in the buffer
    num_idle, num_free = int(can_start.sum()), rule.concurrency
    training: list[tuple[float, int, int, int, int]] = []  # a heap of (end time, draw, position in draw, client, start)
    buffer: list[tuple[int, int, int, int]] = []  # (draw, position in draw, client, start)
    steps, now, last_step, num_draws, num_late = [], 0.0, 0.0, 0, 0
    while len(steps) < rounds:
        last_start = num_draws
        while num_free >= size and num_idle and num_draws - last_start <= _MAX_EMPTY_DRAWS:
            for place, client in enumerate(draw(num_draws)):
                if client >= 0 and can_start[client]:
                    heapq.heappush(training, (now + durations[client], num_draws, place, client, len(steps)))
                    can_start[client] = False
                    num_idle, num_free, last_start = num_idle - 1, num_free - 1, num_draws
            num_draws += 1
        if not training:
            raise InputError(
                f"asynchronous: no client reported in {num_draws - last_start} cohorts. Raise availability."
            )
        now = training[0][0]
        while training and training[0][0] == now:
            _, number, place, client, start = heapq.heappop(training)
            num_free += 1
            if rule.max_staleness is not None and len(steps) - start > rule.max_staleness:
                can_start[client], num_idle, num_late = True, num_idle + 1, num_late + 1
                continue
            buffer.append((number, place, client, start))
            if len(buffer) == rule.buffer_size:
                steps.append((sorted(buffer), num_late, now - last_step))
                can_start[[entry[2] for entry in buffer]] = True
                num_idle, last_step, num_late, buffer = num_idle + len(buffer), now, 0, []
    events, late, seconds = zip(*steps[:rounds], strict=True)
    number, _, client, start = np.array(events, np.int32).transpose(2, 0, 1)
    return EventSchedule(client, start, number, np.array(late, np.int32), np.array(seconds, np.float32))


def _drawer(participation: Participation, key: Key, num_clients: int) -> Callable[[int], list[int]]:
    """The number of a draw -> the sampled ids, -1 for clients that do not report; computes several draws at once."""
    draws_at_once = max(1, _DRAWN_AT_ONCE // participation.size(num_clients))
    draw_block, block = _compile_draws(participation, num_clients, draws_at_once), []

    def draw(number: int) -> list[int]:
        nonlocal block
        if number % draws_at_once == 0:
            block = np.asarray(draw_block(key, np.int32(number))).tolist()
        return block[number % draws_at_once]

    return draw


@functools.lru_cache(maxsize=8)
def _compile_draws(participation: Participation, num_clients: int, count: int) -> Callable[[Key, np.int32], Array]:
    """(key of a run, first number) -> the ids of `count` draws, [count, size]."""

    def draw_one(key: Key, number: Array) -> Array:
        ids, is_available = participation.draw(derive_keys(key, number)[0], num_clients, number)
        return jnp.where(is_available, ids, -1)

    return jax.jit(lambda key, first: jax.lax.map(lambda i: draw_one(key, i), first + jnp.arange(count)))
