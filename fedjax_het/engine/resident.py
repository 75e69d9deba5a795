"""Everything on the device: the rounds between two evaluations are a loop inside one program."""

import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled

from fedjax_het import tree
from fedjax_het.engine import client_side, cost, placement
from fedjax_het.engine.evaluation import BATCH, Evaluation, held_out, make_evaluation, of_own
from fedjax_het.engine.job import compiled, compiled_for_once, everywhere
from fedjax_het.engine.residence import RESIDENT
from fedjax_het.engine.round import RoundMetrics
from fedjax_het.engine.scoring import HeldOut
from fedjax_het.engine.wiring import Wired
from fedjax_het.types import Array, ClientData, Key, PyTree, Rows, State


class Resident:
    """A job's rounds and its evaluation, each one program. The data go to the device when they are first needed."""

    residence = RESIDENT

    def __init__(self, wired: Wired):
        """Compile the rounds; the evaluation when it is asked for, or when `peak_bytes` are."""
        self.wired, begun = wired, time.perf_counter()
        job, layout = wired.job, wired.layout
        at_rest = placement.of_state(layout, has_seeds=True)
        self._keys, self._shapes = layout.place(job.keys()), everywhere(job.federation.data, layout)
        inits = [placement.init(each.round.init, layout) for each in wired.all]
        self.init = compiled_for_once(job.over_runs(inits, (0, None)), layout, at_rest)
        state = jax.eval_shape(self.init, self._keys, self._shapes)
        self.shapes = placement.described(state, layout, has_seeds=True)
        self.program = compiled(
            job.over_runs([partial(_block, each) for each in wired.all], (0, None, 0, None)),
            layout,
            *(self.shapes, self._shapes, self._keys, layout.place(np.int32(1))),
            results=at_rest and (at_rest, layout.sharding),
            donate=(0,),
        )
        self.compile_seconds = time.perf_counter() - begun

    def start(self) -> State:
        return self.init(self._keys, self._data)

    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]:
        """`state` is consumed. Metrics, in numpy, have leaves [runs, num_rounds, ...]."""
        state, metrics = self.program(state, self._data, self._keys, self.wired.layout.place(np.int32(num_rounds)))
        return state, jax.tree.map(lambda x: np.asarray(x)[:, :num_rounds], metrics)

    def evaluate(self, state: State) -> Evaluation:
        """Everything that is held out, in numpy."""
        program, data = self._evaluation, self._data
        return jax.tree.map(np.asarray, program(state, data.examples, self._held_out, self._of_own))

    def watching(
        self, measures: Sequence[Callable[[State, ClientData, Key], PyTree]]
    ) -> tuple[Callable[[State], PyTree], int]:
        """A measure an algorithm, of each run's state, data and key, compiled; in numpy. The state is left as it is.
        And the bytes that lie on a device at the most while it measures."""
        job, layout = self.wired.job, self.wired.layout
        program = compiled(job.over_runs(measures, (0, None, 0)), layout, self.shapes, self._shapes, self._keys)
        return lambda state: jax.tree.map(np.asarray, program(state, self._data, self._keys)), self._peak(program)

    def release(self) -> None:
        """Take the data off the device."""
        for name in ("_data", "_held_out", "_of_own"):
            self.__dict__.pop(name, None)

    @property
    def peak_bytes(self) -> int:
        """What lies on a device at the most, in rounds or in evaluation."""
        return self._peak(self.program, self._evaluation)

    @property
    def round_bytes(self) -> int:
        """What lies on a device at the most in rounds."""
        return self._peak(self.program)

    def _peak(self, *programs: Compiled) -> int:
        return cost.lying(cost.held(self.wired, self.residence)) + max(map(cost.extra_bytes, programs))

    # ---- programs and data -------------------------------------------------------------------------------------------
    @cached_property
    def _evaluation(self) -> Compiled:
        begun, wired, job = time.perf_counter(), self.wired, self.wired.job
        held, groups = held_out(job.federation, BATCH)
        own = of_own(job.federation, job.personal_on_test)
        slots = wired.layout.padded(wired.round.cohort_size)
        evaluates = [make_evaluation(each.round.problem, groups, wired.layout, BATCH, slots) for each in wired.all]
        program = compiled(
            job.over_runs(evaluates, (0, None, None, None)),
            wired.layout,
            *(self.shapes, self._shapes.examples, everywhere(held, wired.layout), everywhere(own, wired.layout)),
        )
        self.compile_seconds += time.perf_counter() - begun
        return program

    @cached_property
    def _held_out(self) -> HeldOut:
        return self.wired.layout.place(held_out(self.wired.job.federation, BATCH)[0])

    @cached_property
    def _of_own(self) -> dict[str, Rows]:
        job = self.wired.job
        tables = of_own(job.federation, job.personal_on_test)
        tables.pop("personal")  # it lies on the devices already
        return self.wired.layout.place(tables) | {"personal": self._data.test}

    @cached_property
    def _data(self) -> ClientData:
        return self.wired.layout.place(self.wired.job.federation.data)


def _block(wired: Wired, state: State, data: ClientData, key: Key, num_rounds: Array) -> tuple[State, RoundMetrics]:
    """`num_rounds` rounds in a loop of the program; metrics are kept for the longest block."""
    empty = jax.tree.map(lambda x: jnp.zeros((wired.job.block, *x.shape), x.dtype), wired.shapes.metrics)
    once = jnp.minimum(num_rounds, 1)

    def one(index: Array, carry: tuple[State, RoundMetrics]) -> tuple[State, RoundMetrics]:
        cohort = wired.round.draw(key, carry[0].server.round)
        state, metrics = wired.among_all(carry[0], cohort, client_side.window(data, cohort), key, once)
        return state, tree.put(carry[1], index, metrics)

    return jax.lax.fori_loop(0, num_rounds, one, (state, empty))
