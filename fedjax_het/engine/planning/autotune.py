"""Choice of the fastest layout by a short timing of the actual rounds before a run begins."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
from jax.experimental import multihost_utils

from fedjax_het._internal.target_platform import target_platform
from fedjax_het.engine.execution.executor import Executor
from fedjax_het.engine.parallel.layout import Layout, sharded
from fedjax_het.errors import MemoryBudgetError

_DEFAULT_CHUNK = 10  # clients at a time, where neither one nor all may be fastest
_MAX_TIMED_ROUNDS, _MAX_TIMED_SECONDS = 5, 1.0  # timing ends at the first of both


class Timing(NamedTuple):
    """The timing of a layout."""

    layout: Layout
    seconds: float  # per round: the fastest of a few after the first
    compile_seconds: float


class LayoutChoice(NamedTuple):
    """The layout that was chosen, and why."""

    layout: Layout
    timings: list[Timing]
    reason: str


def candidates(cohort_size: int) -> list[Layout]:
    """The layouts worth timing on the present devices, the likely fastest first; several processes use all devices.

    The first is, on a CPU, one client after another on each core, which takes only the steps that each client has and
    keeps its model in the cache; on an accelerator, all clients at once on all devices.
    """
    is_single_process = jax.process_count() == 1
    devices = min(jax.device_count(), cohort_size) if is_single_process else jax.device_count()
    per_device = -(-cohort_size // devices)
    on_cpu = target_platform() == "cpu"
    chunks = [1, None, _DEFAULT_CHUNK] if on_cpu else [None, _DEFAULT_CHUNK]
    chunks = [chunk for chunk in chunks if chunk is None or chunk < per_device or chunk == 1]
    layouts = [Layout(chunk) if devices == 1 else sharded(devices, chunk) for chunk in chunks]
    return [*layouts, Layout()] if on_cpu and devices > 1 and is_single_process else layouts


def smaller_layouts(layouts: Sequence[Layout], cohort_size: int) -> Iterator[Layout]:
    """Halve the number of clients at a time of the smallest of these layouts, again and again down to one."""
    clients_per_device = lambda layout: layout.chunk or -(-cohort_size // layout.num_devices)  # noqa: E731
    smallest = min(layouts, key=lambda layout: clients_per_device(layout) * layout.num_devices)
    chunk = clients_per_device(smallest) // 2
    while chunk:
        yield replace(smallest, chunk=chunk)
        chunk //= 2


def find_fastest(
    layouts: Sequence[Layout], build: Callable[[Layout], Executor], rounds: int
) -> tuple[Executor, LayoutChoice]:
    """Build and time one layout after the other, and choose the fastest.

    It ends early where the whole run takes less time than compiling another layout. Timings depend on the machine and
    the moment: store the choice with a run that may be resumed. Only one executor at a time has data on the device.

    Args:
        layouts: The candidates.
        build: Compiles a layout, or raises MemoryBudgetError if it is too large.
        rounds: The number of rounds of the run.

    Returns:
        (The executor of the fastest layout, the choice.)

    Raises:
        MemoryBudgetError: All candidates are too large.
    """
    timings, too_large, best = [], {}, None
    for layout in layouts:
        try:
            executor = build(layout)
        except MemoryBudgetError as error:
            too_large[layout] = error
            continue
        seconds = min(time_rounds(executor, _MAX_TIMED_ROUNDS, _MAX_TIMED_SECONDS))
        timings.append(Timing(layout, seconds, _broadcast_timing(executor.compile_seconds)))
        executor.release()
        if timings[-1] is (fastest := min(timings, key=lambda timing: timing.seconds)):
            best = executor
        if rounds * fastest.seconds < timings[0].compile_seconds:
            break
    if best is None:
        raise list(too_large.values())[-1]
    return best, LayoutChoice(
        fastest.layout, timings, "\n".join(_explain_choice(layouts, timings, fastest, list(too_large)))
    )


def _explain_choice(
    layouts: Sequence[Layout], timings: list[Timing], best: Timing, too_large: Sequence[Layout]
) -> Iterator[str]:
    others = ", ".join(f"{timing.layout} {timing.seconds:.3g}" for timing in timings if timing is not best)
    yield f"{best.layout}: {best.seconds:.3g} s per round" + (f", against {others}" if others else "")
    if too_large:
        yield f"{', '.join(map(str, too_large))} not tried: too large for the memory"
    if rest := layouts[len(timings) + len(too_large) :]:
        yield f"{', '.join(map(str, rest))} not tried: compiling another layout would take longer than the run"


def time_rounds(executor: Executor, num: int, max_seconds: float = float("inf"), block: int = 1) -> list[float]:
    """Time some calls after a first one, which does not count.

    Args:
        executor: The executor.
        num: The most calls that are timed.
        max_seconds: The time after which no further call is made.
        block: The number of rounds per call.

    Returns:
        Seconds per round of each call.
    """
    state, seconds = executor.start(), []
    state, _ = executor.advance(state, block)
    while len(seconds) < num and block * sum(seconds) < max_seconds:
        start_time = time.perf_counter()
        state, _ = executor.advance(state, block)
        seconds.append(_broadcast_timing(time.perf_counter() - start_time) / block)
    return seconds


def _broadcast_timing(seconds: float) -> float:
    """The measurement of the first process, so that all processes choose the same layout."""
    return float(multihost_utils.broadcast_one_to_all(seconds))
