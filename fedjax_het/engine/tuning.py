"""Which layout is quickest: a short timing of the real round, at the real shapes, before a run begins."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
from jax.experimental import multihost_utils

from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.engine import placement
from fedjax_het.engine.layout import Layout, sharded
from fedjax_het.engine.participation import Participation
from fedjax_het.engine.round import make_round
from fedjax_het.types import Key, Model

_CHUNK = 10  # clients side by side, where neither one nor all may be best
_MOST_ROUNDS, _LONG_ENOUGH = 5, 1.0  # time so many rounds, or so many seconds, whichever is less


class Timing(NamedTuple):
    layout: Layout
    seconds: float  # a round: the quickest of a few after the first
    compile_seconds: float


class Choice(NamedTuple):
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


def quickest(
    algorithm: Algorithm,
    model: Model,
    federation: Federation,
    participation: Participation,
    rounds: int,
    seed: int,
) -> Choice:
    """Time one candidate after the other, and take the best.

    It ends early where the whole run takes less than trying another would: the most that a trial could still save is
    then below its price. Timings are of this machine at this moment: store the choice with a run that may be resumed.
    """
    layouts, timings = candidates(participation.size(federation.num_clients)), []
    for layout in layouts:
        timings.append(_timed(algorithm, model, federation, participation, layout, jax.random.key(seed)))
        best = min(timings, key=lambda timing: timing.seconds)
        if rounds * best.seconds < timings[0].compile_seconds:
            break
    return Choice(best.layout, timings, "\n".join(_reasons(layouts, timings, best)))


def _reasons(layouts: list[Layout], timings: list[Timing], best: Timing) -> Iterator[str]:
    others = ", ".join(f"{timing.layout} {timing.seconds:.3g}" for timing in timings if timing is not best)
    yield f"{best.layout}: {best.seconds:.3g} s a round" + (f", against {others}" if others else "")
    if rest := layouts[len(timings) :]:
        yield f"{', '.join(map(str, rest))} not tried: the run is over before another compilation"


def _timed(
    algorithm: Algorithm,
    model: Model,
    federation: Federation,
    participation: Participation,
    layout: Layout,
    key: Key,
) -> Timing:
    round = make_round(
        algorithm,
        model,
        federation.num_clients,
        participation=participation,
        layout=layout,
        prepare=federation.prepare,
        augment=federation.augment,
    )
    at_rest = placement.of_state(layout)
    data, key = layout.place((federation.data, key))
    state = layout.jit(placement.init(round.init, layout), at_rest)(key, data)
    begun = time.perf_counter()
    step = layout.jit(round.step, (at_rest, layout.sharding), donate_argnums=0).lower(state, data, key).compile()
    compile_seconds = _since(begun)
    state, _ = jax.block_until_ready(step(state, data, key))
    rounds = []
    while len(rounds) < _MOST_ROUNDS and sum(rounds) < _LONG_ENOUGH:
        begun = time.perf_counter()
        state, _ = jax.block_until_ready(step(state, data, key))
        rounds.append(_since(begun))
    return Timing(layout, min(rounds), compile_seconds)


def _since(begun: float) -> float:
    """Seconds, by the first process's watch."""
    return float(multihost_utils.broadcast_one_to_all(time.perf_counter() - begun))
