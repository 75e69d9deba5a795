"""Client states on their way between a store and the device, a cohort at a time."""

import time
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het.engine.evaluation.evaluate import Evaluation
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.prefetch import CohortBatch, ExamplePrefetcher, PrefetchedCohort
from fedjax_het.engine.execution.run_spec import OffloadPolicy
from fedjax_het.engine.execution.streaming_evaluation import StreamedEvaluation
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.parallel import sharding
from fedjax_het.engine.parallel.compilation import compile_program, jit_initializer, replicated_shapes
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.round import initialization
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.engine.round.problem import HIDDEN_TEST_ROWS
from fedjax_het.engine.round.program import RoundMetrics
from fedjax_het.engine.storage.client_store import ClientStore
from fedjax_het.types import Array, ClientData, ClientState, Examples, Key, State


class PrefetchedStates(NamedTuple):
    """The clients of a round as the store had them while the round before still ran. Leaves [seeds, slots, ...]."""

    states: ClientState
    places: Array  # where in the round before a client stood, whose state is then taken from there; -1: nowhere


def load_states(store: ClientStore, cohort: Cohort, before: np.ndarray | None, layout: Layout) -> PrefetchedStates:
    """Those of a cohort, on the device.   before: ids [seeds, n] that are still training; None: all is in the store."""
    places = np.full(cohort.ids.shape, -1, np.int32)
    if before is not None:
        places = np.stack([_positions_among(*each) for each in zip(before, cohort.ids, strict=True)])
    return PrefetchedStates(
        jax.device_put(store.take(cohort.ids), layout.client_sharding(axis=1)), layout.replicate(places)
    )


def store_states(store: ClientStore, ids: np.ndarray, clients: ClientState) -> None:
    """What a round made of its clients, as soon as it has ended: ids [seeds, n], leaves [seeds, n or more, ...]."""
    store.put(ids, jax.tree.map(lambda x: np.asarray(x)[:, : ids.shape[1]], clients))


def _positions_among(before: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Where in `before` each of these ids stands; -1: nowhere."""
    order = np.argsort(before)
    found = order[np.minimum(np.searchsorted(before, ids, sorter=order), len(before) - 1)]
    return np.where(before[found] == ids, found, -1).astype(np.int32)


class FinishedRound(NamedTuple):
    """What a round left on the device for the host."""

    cohort: Cohort
    clients: ClientState | None  # leaves [seeds, slots, ...]; None where all states stay on the device
    metrics: RoundMetrics


class StreamingExecutor:
    """A job's rounds, with what does not lie on the device brought there and back a cohort at a time.

    While a round runs, a thread puts the states of the round before into the store, takes the next round's out, and
    copies the next round's examples to the device. A client of two rounds in a row stays there in between.
    """

    def __init__(self, traced: TracedRound, offload: OffloadPolicy, folder: Path | None = None):
        """Compile a round; the evaluation when it is asked for.   folder: where client states on disk go."""
        self.traced, self.offload, self._folder = traced, offload, folder
        self.executor: Executor = ThreadPoolExecutor(1, "staging")
        begun, spec, layout = time.perf_counter(), traced.spec, traced.layout
        self._is_stored = offload.client_states != "device"
        self._keys, self._opaque_one = layout.replicate(spec.keys()), layout.replicate(np.int32(1))
        self._example = layout.replicate(spec.federation.examples.inputs[:1])
        self.windows, self._ahead = ExamplePrefetcher(traced, offload.examples == "stream"), (-1, None)
        at_rest = sharding.state_shardings(layout, has_seeds=True)
        self._begin = jit_initializer(spec.map_over_runs(self._beginning, (0, None)), layout, at_rest)
        shapes = jax.eval_shape(self._begin, self._keys, self._example)
        self.shapes = sharding.with_shardings(shapes, layout, has_seeds=True)  # of the state that a round takes
        window, examples = replicated_shapes(self.windows.shapes, layout)
        carried_over = (self.shapes.clients, window.cohort.ids) if self._is_stored else ()
        self.program = compile_program(
            spec.map_over_runs(self._round, (0, 0, 0, None, 0, None)),
            layout,
            *(self.shapes, carried_over, window, examples, self._keys, self._opaque_one),
            results=at_rest and (at_rest, layout.sharding),
            donate=(0,),
        )
        self.compile_seconds = time.perf_counter() - begun

    # ---- running -----------------------------------------------------------------------------------------------------
    def start(self) -> State:
        state = self._begin(self._keys, self._example)
        if not self._is_stored:
            return state
        folder = self._folder if self.offload.client_states == "disk" else None
        first = jax.tree.map(lambda x: np.asarray(x[:, 0]), state.clients)
        return state._replace(clients=ClientStore(first, self.traced.spec.num_clients, folder))

    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]:
        """`state` is consumed. Metrics, in numpy, have leaves [seeds, num_rounds, ...]."""
        first = int(np.asarray(state.server.round)[0])
        cohorts, store = self.windows.draw_cohorts(first), state.clients if self._is_stored else None
        if first + num_rounds >= self.traced.spec.rounds:
            cohorts[num_rounds] = None  # the run ends here
        prefetched = self._ahead[1] if self._ahead[0] == first else self.windows.prefetch(cohorts[0])
        states, done, metrics = None, None, []
        if store is not None:
            state = state._replace(clients=self._nobody())
            states = load_states(store, cohorts[0], None, self.traced.layout)
        for number in range(num_rounds):
            is_last = number == num_rounds - 1
            between = self.executor.submit(self._between, store, done, cohorts[number], cohorts[number + 1], is_last)
            state, measured = self._call(state, states, prefetched)
            done = FinishedRound(cohorts[number], state.clients if self._is_stored else None, measured)
            prefetched, states, before = between.result()
            metrics += before
        metrics += self._settle(store, done)
        self._ahead = first + num_rounds, prefetched
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
        return cost.bytes_before_round(cost.resident_bytes(self.traced, self.offload)) + cost.temporary_bytes(
            self.program
        )

    @property
    def peak_bytes(self) -> int:
        """What lies on a device at the most, in rounds or in evaluation."""
        extra = max(cost.temporary_bytes(self.program), self._evaluation.extra_bytes)
        return cost.bytes_before_round(cost.resident_bytes(self.traced, self.offload)) + extra

    # ---- a round -----------------------------------------------------------------------------------------------------
    def _call(
        self, state: State, states: PrefetchedStates | None, prefetched: PrefetchedCohort
    ) -> tuple[State, RoundMetrics]:
        if states is None:
            return self.program(state, (), *prefetched, self._keys, self._opaque_one)
        carried_over = state.clients, states.places
        return self.program(
            state._replace(clients=states.states), carried_over, *prefetched, self._keys, self._opaque_one
        )

    def _between(
        self,
        store: ClientStore | None,
        done: FinishedRound | None,
        cohort: Cohort,
        coming: Cohort | None,
        is_last: bool,
    ) -> tuple[PrefetchedCohort | None, PrefetchedStates | None, list[RoundMetrics]]:
        """The host's part while a round runs: (the next window, the next comers, the metrics of the round before).

        done: the round before.   coming: the cohort of the round after.   is_last: another call takes its clients out.
        """
        metrics, states = self._settle(store, done), None
        if store is not None and not is_last:
            size = self.traced.round.cohort_size
            states = load_states(store, coming, cohort.ids[:, :size], self.traced.layout)
        return None if coming is None else self.windows.prefetch(coming), states, metrics

    def _settle(self, store: ClientStore | None, done: FinishedRound | None) -> list[RoundMetrics]:
        """Wait for a round, and fetch what it left."""
        if done is None:
            return []
        if store is not None:
            store_states(store, done.cohort.ids[:, : self.traced.round.cohort_size], done.clients)
        return [jax.tree.map(np.asarray, done.metrics)]

    def _nobody(self) -> ClientState:
        nobody = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self.shapes.clients)
        return jax.device_put(nobody, self.traced.layout.client_sharding(axis=1))

    # ---- programs ----------------------------------------------------------------------------------------------------
    def _beginning(self, key: Key, inputs: Array) -> State:
        """With a state for each client, or for each slot of a cohort."""
        spec, layout = self.traced.spec, self.traced.layout
        num_rows = layout.round_up(spec.cohort_size) if self._is_stored else layout.count_client_rows(spec.num_clients)
        return initialization.broadcast_clients(self.traced.round.begin(key, inputs), num_rows)

    def _round(
        self,
        state: State,
        carried_over: tuple[ClientState, Array] | tuple[()],
        window: CohortBatch,
        examples: Examples,
        key: Key,
        opaque_one: Array,
    ) -> tuple[State, RoundMetrics]:
        """One round. `late`: the clients of the round before, and where in it each of this one's stood."""
        data = ClientData(examples, window.train, window.valid, HIDDEN_TEST_ROWS)
        if not carried_over:
            return self.traced.with_population(state, window.cohort, data, key, opaque_one)
        last, before = carried_over
        clients = tree.where(before >= 0, tree.take(last, jnp.maximum(before, 0)), state.clients)
        return self.traced.cohort_only(state._replace(clients=clients), window.cohort, data, key, opaque_one)

    @cached_property
    def _evaluation(self) -> StreamedEvaluation:
        begun = time.perf_counter()
        evaluation = StreamedEvaluation(self.traced, self.shapes, self.windows)
        self.compile_seconds += time.perf_counter() - begun
        return evaluation
