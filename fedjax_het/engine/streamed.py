"""Client states, examples or both off the device: a round a call, and the host prepares the next one meanwhile."""

import time
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het.engine import cost, traffic
from fedjax_het.engine.client_side import WITHHELD, Cohort
from fedjax_het.engine.evaluation import Evaluation
from fedjax_het.engine.job import abstract, compiled, place, placed_out
from fedjax_het.engine.residence import Residence
from fedjax_het.engine.round import RoundMetrics
from fedjax_het.engine.store import ClientStore
from fedjax_het.engine.streamed_evaluation import StreamedEvaluation
from fedjax_het.engine.traffic import Comers
from fedjax_het.engine.windows import Window, Windows
from fedjax_het.engine.wiring import Wired
from fedjax_het.errors import InputError
from fedjax_het.types import Array, ClientData, ClientState, Examples, Key, Rows, State


class Done(NamedTuple):
    """What a round left on the device for the host."""

    cohort: Cohort
    clients: ClientState | None  # leaves [seeds, slots, ...]; None where all states stay on the device
    metrics: RoundMetrics


class Streamed:
    """A job's rounds, with what does not lie on the device brought there and back a cohort at a time.

    While a round runs, a thread puts the states of the round before into the store, takes the next round's out, and
    copies the next round's examples to the device. A client of two rounds in a row stays there in between.
    """

    def __init__(self, wired: Wired, residence: Residence, folder: Path | None = None):
        """Compile a round; the evaluation when it is asked for.   folder: where client states on disk go.

        Raises InputError in one of several processes.
        """
        if jax.process_count() > 1:
            raise InputError(f"{residence}: not with several processes. Leave both on the devices.")
        self.wired, self.residence, self._folder = wired, residence, folder
        self.executor: Executor = ThreadPoolExecutor(1, "staging")
        begun, job, layout = time.perf_counter(), wired.job, wired.layout
        self._is_stored = residence.client_states != "device"
        self._keys, self._example = place((job.keys(), job.federation.examples.inputs[:1]), layout)
        self.windows, self._ahead = Windows(wired, residence.examples == "stream"), (-1, None)
        begin = wired.round.begin if self._is_stored else wired.round.begin_all
        self._begin = jax.jit(job.over_seeds(begin, (0, None)), **placed_out(layout))
        shapes, window = jax.eval_shape(self._begin, self._keys, self._example), self.windows.shapes
        if self._is_stored:
            places = window.cohort.ids.shape
            one_each = lambda x: jax.ShapeDtypeStruct((*places, *x.shape[1:]), x.dtype)  # noqa: E731
            shapes = shapes._replace(clients=jax.tree.map(one_each, shapes.clients))
        self.shapes = abstract(shapes, layout)  # of the state that a round takes
        late = (self.shapes.clients, window.cohort.ids) if self._is_stored else ()
        self._one = place(np.int32(1), layout)
        rounds = job.over_seeds(self._rounds, (0, 0, 0, 0, 0, None, 0, None))
        self.program = compiled(rounds, layout, self.shapes, late, *window, self._keys, self._one, donate=(0,))
        self.compile_seconds = time.perf_counter() - begun

    # ---- running -----------------------------------------------------------------------------------------------------
    def start(self) -> State:
        state = self._begin(self._keys, self._example)
        if not self._is_stored:
            return state
        folder = self._folder if self.residence.client_states == "disk" else None
        return state._replace(clients=ClientStore(state.clients, self.wired.job.num_clients, folder))

    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]:
        """`state` is consumed. Metrics, in numpy, have leaves [seeds, num_rounds, ...]."""
        first = int(np.asarray(state.server.round)[0])
        cohorts, store = self.windows.cohorts(first), state.clients if self._is_stored else None
        if first + num_rounds >= self.wired.job.rounds:
            cohorts[num_rounds] = None  # the run ends here
        window = self._ahead[1] if self._ahead[0] == first else self.windows.bring(cohorts[0])
        comers, done, metrics = None, None, []
        if store is not None:
            state = state._replace(clients=self._nobody())
            comers = traffic.taken_out(store, cohorts[0], None, self.wired.layout)
        for number in range(num_rounds):
            is_last = number == num_rounds - 1
            between = self.executor.submit(self._between, store, done, cohorts[number], cohorts[number + 1], is_last)
            state, measured = self._call(state, comers, window)
            done = Done(cohorts[number], state.clients if self._is_stored else None, measured)
            window, comers, before = between.result()
            metrics += before
        metrics += self._settle(store, done)
        self._ahead = first + num_rounds, window
        state = state if store is None else state._replace(clients=store)
        return state, jax.tree.map(lambda *rounds: np.stack(rounds, axis=1), *metrics)

    def evaluate(self, state: State) -> Evaluation:
        """Everything that is held out, in numpy."""
        return self._evaluation(state, self.executor)

    def release(self) -> None:
        """Take the data off the device."""
        self.windows.release()
        self._ahead = (-1, None)

    @property
    def peak_bytes(self) -> int:
        """What lies on a device at the most, in rounds or in evaluation."""
        extra = max(cost.extra_bytes(self.program), self._evaluation.extra_bytes)
        return cost.lying(cost.held(self.wired, self.residence)) + extra

    # ---- a round -----------------------------------------------------------------------------------------------------
    def _call(self, state: State, comers: Comers | None, window: Window) -> tuple[State, RoundMetrics]:
        if comers is None:
            return self.program(state, (), *window, self._keys, self._one)
        late = state.clients, comers.places
        return self.program(state._replace(clients=comers.states), late, *window, self._keys, self._one)

    def _between(
        self, store: ClientStore | None, done: Done | None, cohort: Cohort, coming: Cohort | None, is_last: bool
    ) -> tuple[Window | None, Comers | None, list[RoundMetrics]]:
        """The host's part while a round runs: (the next window, the next comers, the metrics of the round before).

        done: the round before.   coming: the cohort of the round after.   is_last: another call takes its clients out.
        """
        metrics, comers = self._settle(store, done), None
        if store is not None and not is_last:
            size = self.wired.round.cohort_size
            comers = traffic.taken_out(store, coming, cohort.ids[:, :size], self.wired.layout)
        return None if coming is None else self.windows.bring(coming), comers, metrics

    def _settle(self, store: ClientStore | None, done: Done | None) -> list[RoundMetrics]:
        """Wait for a round, and fetch what it left."""
        if done is None:
            return []
        if store is not None:
            traffic.put_back(store, done.cohort.ids[:, : self.wired.round.cohort_size], done.clients)
        return [jax.tree.map(np.asarray, done.metrics)]

    def _nobody(self) -> ClientState:
        nobody = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self.shapes.clients)
        return place(nobody, self.wired.layout)

    # ---- programs ----------------------------------------------------------------------------------------------------
    def _rounds(
        self,
        state: State,
        late: tuple[ClientState, Array] | tuple[()],
        cohort: Cohort,
        train: Rows,
        valid: Rows,
        examples: Examples,
        key: Key,
        num_rounds: Array,
    ) -> tuple[State, RoundMetrics]:
        """One round. `late`: the clients of the round before, and where in it each of this one's stood.

        In a loop as where everything is on the device: outside of one the compiler would lay out and add up otherwise.
        """
        data, places = ClientData(examples, train, valid, WITHHELD), cohort.ids
        if late:
            last, before = late
            clients = tree.where(before >= 0, tree.take(last, jnp.maximum(before, 0)), state.clients)
            state, places = state._replace(clients=clients), jnp.arange(len(before))

        def one(number: Array, carry: tuple[State, RoundMetrics]) -> tuple[State, RoundMetrics]:
            return self.wired.round.train(carry[0], places, cohort, data, key)[:2]

        empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.wired.shapes.metrics)
        return jax.lax.fori_loop(0, num_rounds, one, (state, empty))

    @cached_property
    def _evaluation(self) -> StreamedEvaluation:
        begun = time.perf_counter()
        evaluation = StreamedEvaluation(self.wired, self.shapes, self.windows)
        self.compile_seconds += time.perf_counter() - begun
        return evaluation
