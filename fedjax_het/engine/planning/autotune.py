"""Which layout is quickest: a short timing of the real rounds, at the real shapes, before a run begins."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import jax
from jax.experimental import multihost_utils

from fedjax_het.engine.evaluation.evaluate import Evaluation
from fedjax_het.engine.execution.run_spec import OffloadPolicy
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.parallel.layout import Layout, sharded
from fedjax_het.engine.round.program import RoundMetrics
from fedjax_het.errors import MemoryBudgetError
from fedjax_het.types import State

_CHUNK = 10  # clients side by side, where neither one nor all may be best
_MOST_ROUNDS, _LONG_ENOUGH = 5, 1.0  # time so many rounds, or so many seconds, whichever is less


class Runner(Protocol):
    """A wired job, compiled for one layout and residence: a `Resident` or a `Streamed`."""

    traced: TracedRound
    offload: OffloadPolicy
    compile_seconds: float
    peak_bytes: int
    round_bytes: int

    def start(self) -> State: ...
    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]: ...
    def evaluate(self, state: State) -> Evaluation: ...
    def release(self) -> None: ...


class Timing(NamedTuple):
    layout: Layout
    seconds: float  # a round: the quickest of a few after the first
    compile_seconds: float


class LayoutChoice(NamedTuple):
    layout: Layout
    timings: list[Timing]
    reason: str  # in words


def candidates(cohort_size: int) -> list[Layout]:
    """Layouts worth a trial on the devices that there are, the likeliest first; several processes use all.

    On a CPU one client after another on each core, which takes just the steps that each client has and keeps its model
    in the cache; on an accelerator all clients side by side on all devices.
    """
    is_alone = jax.process_count() == 1
    devices = min(jax.device_count(), cohort_size) if is_alone else jax.device_count()
    a_device = -(-cohort_size // devices)
    on_cpu = jax.default_backend() == "cpu"
    chunks = [1, None, _CHUNK] if on_cpu else [None, _CHUNK]
    chunks = [chunk for chunk in chunks if chunk is None or chunk < a_device or chunk == 1]
    found = [Layout(chunk) if devices == 1 else sharded(devices, chunk) for chunk in chunks]
    return [*found, Layout()] if on_cpu and devices > 1 and is_alone else found


def smaller_layouts(layouts: Sequence[Layout], cohort_size: int) -> Iterator[Layout]:
    """Half as many clients at a time as the one of these that takes the fewest, half of that, ..., one."""
    fewest = lambda layout: layout.chunk or -(-cohort_size // layout.num_devices)  # noqa: E731
    least = min(layouts, key=lambda layout: fewest(layout) * layout.num_devices)
    chunk = fewest(least) // 2
    while chunk:
        yield replace(least, chunk=chunk)
        chunk //= 2


def find_fastest(
    layouts: Sequence[Layout], build: Callable[[Layout], Runner], rounds: int
) -> tuple[Runner, LayoutChoice]:
    """Build and time one candidate after the other, and take the best. One at a time has its data on the device.

    It ends early where the whole run takes less than trying another would: the most that a trial could still save is
    then below its price. Timings are of this machine at this moment: store the choice with a run that may be resumed.
    Candidates for which `build` raises TooLarge are left out; raises the last TooLarge if that leaves none.
    """
    timings, too_large, best = [], {}, None
    for layout in layouts:
        try:
            runner = build(layout)
        except MemoryBudgetError as error:
            too_large[layout] = error
            continue
        seconds = min(time_rounds(runner, _MOST_ROUNDS, _LONG_ENOUGH))
        timings.append(Timing(layout, seconds, _order_by_first_timing(runner.compile_seconds)))
        runner.release()
        if timings[-1] is (quickest := min(timings, key=lambda timing: timing.seconds)):
            best = runner
        if rounds * quickest.seconds < timings[0].compile_seconds:
            break
    if best is None:
        raise list(too_large.values())[-1]
    return best, LayoutChoice(
        quickest.layout, timings, "\n".join(_explain_choice(layouts, timings, quickest, list(too_large)))
    )


def _explain_choice(
    layouts: Sequence[Layout], timings: list[Timing], best: Timing, too_large: Sequence[Layout]
) -> Iterator[str]:
    others = ", ".join(f"{timing.layout} {timing.seconds:.3g}" for timing in timings if timing is not best)
    yield f"{best.layout}: {best.seconds:.3g} s a round" + (f", against {others}" if others else "")
    if too_large:
        yield f"{', '.join(map(str, too_large))} not tried: more than there is memory for"
    if rest := layouts[len(timings) + len(too_large) :]:
        yield f"{', '.join(map(str, rest))} not tried: the run is over before another compilation"


def time_rounds(runner: Runner, num: int, long_enough: float = float("inf"), block: int = 1) -> list[float]:
    """Seconds a round of so many calls of `block` rounds, after one that does not count; fewer if they take long."""
    state, seconds = runner.start(), []
    state, _ = runner.advance(state, block)
    while len(seconds) < num and block * sum(seconds) < long_enough:
        begun = time.perf_counter()
        state, _ = runner.advance(state, block)
        seconds.append(_order_by_first_timing(time.perf_counter() - begun) / block)
    return seconds


def _order_by_first_timing(seconds: float) -> float:
    """What the first process measured: all decide alike."""
    return float(multihost_utils.broadcast_one_to_all(seconds))
