"""Choice of the fastest layout and convolution by timing a few actual rounds before a run starts."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
from jax.experimental import multihost_utils

from fedjax_het._internal.target_platform import target_platform
from fedjax_het.engine.execution.executor import Executor
from fedjax_het.engine.execution.run_spec import RunSpec
from fedjax_het.engine.parallel.layout import Layout, sharded
from fedjax_het.errors import MemoryBudgetError
from fedjax_het.models._conv_impl import with_conv

_DEFAULT_CHUNK = 10  # clients at a time, between one and all
_MAX_TIMED_ROUNDS, _MAX_TIMED_SECONDS = 5, 1.0  # timing ends when either is reached


class Candidate(NamedTuple):
    """A layout, and the implementation for conv="auto"; None: the default."""

    layout: Layout
    conv: str | None = None

    def adapt(self, spec: RunSpec) -> RunSpec:
        """The run with the convolutions of this candidate."""
        return replace(spec, model=with_conv(self.conv)(spec.model)) if self.conv else spec

    def __str__(self) -> str:
        return f"{self.layout} with {self.conv}" if self.conv else str(self.layout)


class Timing(NamedTuple):
    """The timing of a candidate."""

    candidate: Candidate
    seconds: float  # per round: the minimum after the first
    compile_seconds: float


class LayoutChoice(NamedTuple):
    """The selected layout and convolution, with the reason."""

    layout: Layout
    conv: str | None  # None if convolutions were not timed
    timings: list[Timing]
    reason: str


def candidates(cohort_size: int, convs: Sequence[str] = ()) -> list[Layout]:
    """The layouts to time on the present devices, likely fastest first; multiple processes use all devices.

    On a CPU, the first layout is sequential clients on each core, which avoids padding steps and keeps the model in the
    cache; on an accelerator, all clients at once on all devices. If convolutions are timed, sequential clients are
    also timed there, since their convolutions are not grouped.
    """
    is_single_process = jax.process_count() == 1
    devices = min(jax.device_count(), cohort_size) if is_single_process else jax.device_count()
    per_device = -(-cohort_size // devices)
    on_cpu = target_platform() == "cpu"
    chunks = [1, None, _DEFAULT_CHUNK] if on_cpu else [None, _DEFAULT_CHUNK, *([1] if convs else [])]
    chunks = [chunk for chunk in chunks if chunk is None or chunk < per_device or chunk == 1]
    layouts = [Layout(chunk) if devices == 1 else sharded(devices, chunk) for chunk in chunks]
    return [*layouts, Layout()] if on_cpu and devices > 1 and is_single_process else layouts


def pair_up(layouts: Sequence[Layout], convs: Sequence[str]) -> list[Candidate]:
    """All combinations of layouts and convolutions, grouped by layout."""
    return [Candidate(layout, conv) for layout in layouts for conv in convs or (None,)]


def smaller_layouts(layouts: Sequence[Layout], cohort_size: int) -> Iterator[Layout]:
    """Repeatedly halve the number of clients at a time of the smallest of these layouts, down to one."""
    clients_per_device = lambda layout: layout.chunk or -(-cohort_size // layout.num_devices)  # noqa: E731
    smallest = min(layouts, key=lambda layout: clients_per_device(layout) * layout.num_devices)
    chunk = clients_per_device(smallest) // 2
    while chunk:
        yield replace(smallest, chunk=chunk)
        chunk //= 2


def find_fastest(
    candidates: Sequence[Candidate], build: Callable[[Candidate], Executor], rounds: int
) -> tuple[Executor, LayoutChoice]:
    """Build and time the candidates in turn, and select the fastest.

    All convolutions are timed in the first layout that fits, and only the fastest of them in other layouts, except for
    sequential clients, whose convolutions are not grouped and use the first candidate. The search stops early if the
    whole run takes less time than compiling another candidate. Timings vary between machines and over time, so store
    the choice with runs that may be resumed. Only one executor at a time has data on the device.

    Args:
        candidates: See `pair_up`.
        build: Compiles a candidate, or raises MemoryBudgetError if it is too large.
        rounds: The number of rounds of the run.

    Returns:
        (The executor of the fastest candidate, the choice.)

    Raises:
        MemoryBudgetError: All candidates are too large.
    """
    timings, too_large, best, rest = [], {}, None, list(candidates)
    while rest:
        candidate, *rest = rest
        try:
            executor = build(candidate)
        except MemoryBudgetError as error:
            too_large[candidate] = error
            continue
        seconds = min(time_rounds(executor, _MAX_TIMED_ROUNDS, _MAX_TIMED_SECONDS))
        timings.append(timing := Timing(candidate, seconds, _broadcast_timing(executor.compile_seconds)))
        executor.release()
        if best is None or seconds < best[0].seconds:
            best = timing, executor
        if not rest or rest[0].layout != candidate.layout:
            rest = [untried for untried in rest if untried.conv == _expected_conv(untried.layout, best[0], candidates)]
        if rounds * best[0].seconds < timings[0].compile_seconds:
            break
    if best is None:
        raise list(too_large.values())[-1]
    fastest, executor = best
    reason = "\n".join(_explain_choice(timings, fastest, list(too_large), rest))
    return executor, LayoutChoice(fastest.candidate.layout, fastest.candidate.conv, timings, reason)


def _expected_conv(layout: Layout, fastest: Timing, candidates: Sequence[Candidate]) -> str | None:
    """The convolution for timing a layout after all convolutions have been timed in another layout."""
    return candidates[0].conv if layout.chunk == 1 else fastest.candidate.conv


def _explain_choice(
    timings: list[Timing], best: Timing, too_large: Sequence[Candidate], rest: Sequence[Candidate]
) -> Iterator[str]:
    others = ", ".join(f"{timing.candidate} {timing.seconds:.3g}" for timing in timings if timing is not best)
    yield f"{best.candidate}: {best.seconds:.3g} s per round" + (f", against {others}" if others else "")
    if too_large:
        yield f"{', '.join(map(str, too_large))} not tried: too large for the memory"
    if rest:
        yield f"{', '.join(map(str, rest))} not tried: compiling another would take longer than the run"


def time_rounds(executor: Executor, num: int, max_seconds: float = float("inf"), block: int = 1) -> list[float]:
    """Time several calls after an untimed first call.

    Args:
        executor: The executor.
        num: The maximum number of timed calls.
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
    """The measurement of the first process, so all processes choose the same layout."""
    return float(multihost_utils.broadcast_one_to_all(seconds))
