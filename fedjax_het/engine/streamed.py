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
from fedjax_het.engine import cost, exchange, initial, placement
from fedjax_het.engine.client_side import Cohort
from fedjax_het.engine.evaluation import Evaluation
from fedjax_het.engine.exchange import Comers
from fedjax_het.engine.job import compiled, compiled_for_once, everywhere
from fedjax_het.engine.problem import WITHHELD
from fedjax_het.engine.residence import Residence
from fedjax_het.engine.round import RoundMetrics
from fedjax_het.engine.store import ClientStore
from fedjax_het.engine.streamed_evaluation import StreamedEvaluation
from fedjax_het.engine.windows import Brought, Window, Windows
from fedjax_het.engine.wiring import Wired
from fedjax_het.types import Array, ClientData, ClientState, Examples, Key, State


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
        """Compile a round; the evaluation when it is asked for.   folder: where client states on disk go."""
        self.wired, self.residence, self._folder = wired, residence, folder
        self.executor: Executor = ThreadPoolExecutor(1, "staging")
        begun, job, layout = time.perf_counter(), wired.job, wired.layout
        self._is_stored = residence.client_states != "device"
        self._keys, self._once = layout.place(job.keys()), layout.place(np.int32(1))
        self._example = layout.place(job.federation.examples.inputs[:1])
        self.windows, self._ahead = Windows(wired, residence.examples == "stream"), (-1, None)
        at_rest = placement.of_state(layout, has_seeds=True)
        self._begin = compiled_for_once(job.over_runs([self._beginning], (0, None)), layout, at_rest)
        shapes = jax.eval_shape(self._begin, self._keys, self._example)
        self.shapes = placement.described(shapes, layout, has_seeds=True)  # of the state that a round takes
        window, examples = everywhere(self.windows.shapes, layout)
        late = (self.shapes.clients, window.cohort.ids) if self._is_stored else ()
        self.program = compiled(
            job.over_runs([self._round], (0, 0, 0, None, 0, None)),
            layout,
            *(self.shapes, late, window, examples, self._keys, self._once),
            results=at_rest and (at_rest, layout.sharding),
            donate=(0,),
        )
        self.compile_seconds = time.perf_counter() - begun

    # ---- running -----------------------------------------------------------------------------------------------------
    def start(self) -> State:
        state = self._begin(self._keys, self._example)
        if not self._is_stored:
            return state
        folder = self._folder if self.residence.client_states == "disk" else None
        first = jax.tree.map(lambda x: np.asarray(x[:, 0]), state.clients)
        return state._replace(clients=ClientStore(first, self.wired.job.num_clients, folder))

    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]:
        """`state` is consumed. Metrics, in numpy, have leaves [seeds, num_rounds, ...]."""
        first = int(np.asarray(state.server.round)[0])
        cohorts, store = self.windows.cohorts(first), state.clients if self._is_stored else None
        if first + num_rounds >= self.wired.job.rounds:
            cohorts[num_rounds] = None  # the run ends here
        brought = self._ahead[1] if self._ahead[0] == first else self.windows.bring(cohorts[0])
        comers, done, metrics = None, None, []
        if store is not None:
            state = state._replace(clients=self._nobody())
            comers = exchange.taken_out(store, cohorts[0], None, self.wired.layout)
        for number in range(num_rounds):
            is_last = number == num_rounds - 1
            between = self.executor.submit(self._between, store, done, cohorts[number], cohorts[number + 1], is_last)
            state, measured = self._call(state, comers, brought)
            done = Done(cohorts[number], state.clients if self._is_stored else None, measured)
            brought, comers, before = between.result()
            metrics += before
        metrics += self._settle(store, done)
        self._ahead = first + num_rounds, brought
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
    def round_bytes(self) -> int:
        """What lies on a device at the most in rounds."""
        return cost.lying(cost.held(self.wired, self.residence)) + cost.extra_bytes(self.program)

    @property
    def peak_bytes(self) -> int:
        """What lies on a device at the most, in rounds or in evaluation."""
        extra = max(cost.extra_bytes(self.program), self._evaluation.extra_bytes)
        return cost.lying(cost.held(self.wired, self.residence)) + extra

    # ---- a round -----------------------------------------------------------------------------------------------------
    def _call(self, state: State, comers: Comers | None, brought: Brought) -> tuple[State, RoundMetrics]:
        if comers is None:
            return self.program(state, (), *brought, self._keys, self._once)
        late = state.clients, comers.places
        return self.program(state._replace(clients=comers.states), late, *brought, self._keys, self._once)

    def _between(
        self, store: ClientStore | None, done: Done | None, cohort: Cohort, coming: Cohort | None, is_last: bool
    ) -> tuple[Brought | None, Comers | None, list[RoundMetrics]]:
        """The host's part while a round runs: (the next window, the next comers, the metrics of the round before).

        done: the round before.   coming: the cohort of the round after.   is_last: another call takes its clients out.
        """
        metrics, comers = self._settle(store, done), None
        if store is not None and not is_last:
            size = self.wired.round.cohort_size
            comers = exchange.taken_out(store, coming, cohort.ids[:, :size], self.wired.layout)
        return None if coming is None else self.windows.bring(coming), comers, metrics

    def _settle(self, store: ClientStore | None, done: Done | None) -> list[RoundMetrics]:
        """Wait for a round, and fetch what it left."""
        if done is None:
            return []
        if store is not None:
            exchange.put_back(store, done.cohort.ids[:, : self.wired.round.cohort_size], done.clients)
        return [jax.tree.map(np.asarray, done.metrics)]

    def _nobody(self) -> ClientState:
        nobody = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self.shapes.clients)
        return jax.device_put(nobody, self.wired.layout.by_client(axis=1))

    # ---- programs ----------------------------------------------------------------------------------------------------
    def _beginning(self, key: Key, inputs: Array) -> State:
        """With a state for each client, or for each slot of a cohort."""
        job, layout = self.wired.job, self.wired.layout
        num_rows = layout.padded(job.cohort_size) if self._is_stored else layout.at_rest(job.num_clients)
        return initial.of_everyone(self.wired.round.begin(key, inputs), num_rows)

    def _round(
        self,
        state: State,
        late: tuple[ClientState, Array] | tuple[()],
        window: Window,
        examples: Examples,
        key: Key,
        once: Array,
    ) -> tuple[State, RoundMetrics]:
        """One round. `late`: the clients of the round before, and where in it each of this one's stood."""
        data = ClientData(examples, window.train, window.valid, WITHHELD)
        if not late:
            return self.wired.among_all(state, window.cohort, data, key, once)
        last, before = late
        clients = tree.where(before >= 0, tree.take(last, jnp.maximum(before, 0)), state.clients)
        return self.wired.alone(state._replace(clients=clients), window.cohort, data, key, once)

    @cached_property
    def _evaluation(self) -> StreamedEvaluation:
        begun = time.perf_counter()
        evaluation = StreamedEvaluation(self.wired, self.shapes, self.windows)
        self.compile_seconds += time.perf_counter() - begun
        return evaluation
