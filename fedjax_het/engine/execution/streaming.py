"""Execution of rounds that stream client states, examples or both from the host, one cohort at a time."""

import time
from concurrent import futures
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het.engine.evaluation.evaluate import Evaluation
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.executor import Executor
from fedjax_het.engine.execution.prefetch import CohortBatch, ExamplePrefetcher, PrefetchedCohort
from fedjax_het.engine.execution.run_spec import OffloadPolicy
from fedjax_het.engine.execution.streaming_evaluation import StreamedEvaluation
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.parallel import sharding
from fedjax_het.engine.parallel.compilation import COMPILATION_LOG, compile_program, jit_initializer, replicated_shapes
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.round import initialization
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.engine.round.phases import RoundMetrics
from fedjax_het.engine.storage.client_store import ClientStore
from fedjax_het.problem import HIDDEN_TEST_ROWS
from fedjax_het.types import Array, ClientData, ClientState, Examples, HostArray, Key, State


class PrefetchedStates(NamedTuple):
    """The client states of a round, read from the store while the previous round still runs.

    Leaves [seeds, slots, ...]. Clients that also take part in the previous round have stale states here; `positions`
    locates their new states on the device.
    """

    states: ClientState
    positions: Array  # the client's position in the previous round; -1: absent there, so its state here is current


def load_states(store: ClientStore, cohort: Cohort, before: HostArray | None, layout: Layout) -> PrefetchedStates:
    """Copy the states of a cohort from the store to the device.

    Args:
        store: The client states.
        cohort: The cohort.
        before: The ids [seeds, n] of the cohort still in training; None if the store is up to date.
        layout: The layout of the devices.

    Returns:
        The states, and the positions of new states for stale ones.
    """
    positions = np.full(cohort.ids.shape, -1, np.int32)
    if before is not None:
        positions = np.stack([_positions_among(*each) for each in zip(before, cohort.ids, strict=True)])
    return PrefetchedStates(jax.device_put(store.take(cohort.ids), layout.client_sharding), layout.replicate(positions))


def store_states(store: ClientStore, ids: HostArray, clients: ClientState) -> None:
    """Write the states returned by a round to the store, as soon as the round has finished.

    Args:
        store: The client states.
        ids: The clients of the round, [seeds, n].
        clients: Their states, leaves [seeds, n or more, ...].
    """
    store.put(ids, jax.tree.map(lambda x: np.asarray(x)[:, : ids.shape[1]], clients))


def _positions_among(before: HostArray, ids: HostArray) -> np.ndarray:
    """The position of each id in `before`; -1 if absent."""
    order = np.argsort(before)
    positions = order[np.minimum(np.searchsorted(before, ids, sorter=order), len(before) - 1)]
    return np.where(before[positions] == ids, positions, -1).astype(np.int32)


class FinishedRound(NamedTuple):
    """The results of a round that the host has yet to fetch from the device."""

    cohort: Cohort
    clients: ClientState | None  # leaves [seeds, slots, ...]; None if all states stay on the device
    metrics: RoundMetrics


class StreamingExecutor(Executor):
    """An `Executor` that keeps client states (as a ClientStore), examples or both off the device.

    While a round runs, a thread writes the states of the previous round to the store, reads those of the next round,
    and copies the next round's examples to the device. The state of a client that takes part in two successive rounds
    stays on the device.
    """

    def __init__(self, traced: TracedRound, offload: OffloadPolicy, folder: Path | None = None):
        """Compile a round; the evaluation is compiled on first use.

        Args:
            traced: The round.
            offload: Where client states and examples are kept.
            folder: The folder for client states on disk.
        """
        self.traced, self.offload, self._folder = traced, offload, folder
        self.prefetch_pool: futures.Executor = futures.ThreadPoolExecutor(1, "prefetch")
        start_time, spec, layout = time.perf_counter(), traced.spec, traced.layout
        self._is_stored = offload.client_states != "device"
        self._keys, self._num_iterations = layout.replicate(spec.keys()), layout.replicate(np.int32(1))
        self._example = layout.replicate(spec.federation.examples.inputs[:1])
        self._prefetcher = ExamplePrefetcher(traced, offload.examples == "stream")
        self._prefetched_round: tuple[int, PrefetchedCohort | None] = (-1, None)
        shardings = sharding.state_shardings(layout)
        self._initialize = jit_initializer(spec.map_over_runs(self._initial_state, (0, None)), layout, shardings)
        shapes = jax.eval_shape(self._initialize, self._keys, self._example)
        self.shapes = sharding.with_shardings(shapes, layout)  # shapes of a round's input state
        batch, examples = replicated_shapes(self._prefetcher.shapes, layout)
        carried_over = (self.shapes.clients, batch.cohort.ids) if self._is_stored else ()
        COMPILATION_LOG.info("compiling rounds, %s", layout)
        self.program = compile_program(
            spec.map_over_runs(self._round, (0, 0, 0, None, 0, None)),
            layout,
            *(self.shapes, carried_over, batch, examples, self._keys, self._num_iterations),
            results=shardings and (shardings, layout.sharding),
            donate=(0,),
        )
        self.compile_seconds = time.perf_counter() - start_time

    # ---- running -----------------------------------------------------------------------------------------------------
    def start(self) -> State:
        state = self._initialize(self._keys, self._example)
        if not self._is_stored:
            return state
        folder = self._folder if self.offload.client_states == "disk" else None
        first = jax.tree.map(lambda x: np.asarray(x[:, 0]), state.clients)
        return state._replace(clients=ClientStore(first, self.traced.spec.num_clients, folder))

    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]:
        first = int(np.asarray(state.server.round)[0])
        is_end = first + num_rounds >= self.traced.spec.rounds
        cohorts, store = self._prefetcher.draw_cohorts(first), state.clients if self._is_stored else None
        prefetched = self._prefetched_round[1] if self._prefetched_round[0] == first else None
        prefetched, following = prefetched or self._prefetcher.prefetch(cohorts[0]), None
        states, finished, metrics = None, None, []
        if store is not None:
            zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self.shapes.clients)
            state = state._replace(clients=jax.device_put(zeros, self.traced.layout.client_sharding))
            states = load_states(store, cohorts[0], None, self.traced.layout)
        for number in range(num_rounds):
            is_last = number == num_rounds - 1
            next_cohort = None if is_last and is_end else cohorts[number + 1]
            prepared = self.prefetch_pool.submit(
                self._prepare_next, store, finished, cohorts[number], next_cohort, is_last
            )
            state, round_metrics = self._call(state, states, prefetched)
            finished = FinishedRound(cohorts[number], state.clients if self._is_stored else None, round_metrics)
            following, states, before = prepared.result()
            prefetched = following or prefetched
            metrics += before
        metrics += self._collect_round(store, finished)
        self._prefetched_round = first + num_rounds, following
        state = state if store is None else state._replace(clients=store)
        return state, jax.tree.map(lambda *rounds: np.stack(rounds, axis=1), *metrics)

    def evaluate(self, state: State) -> Evaluation:
        return self._evaluation(state, self.prefetch_pool)

    def release(self) -> None:
        self._prefetcher.release()
        self._prefetched_round = (-1, None)

    @property
    def peak_bytes(self) -> int:
        return self._peak_bytes(cost.temporary_bytes(self.program), self._evaluation.extra_bytes)

    # ---- a round -----------------------------------------------------------------------------------------------------
    def _call(
        self, state: State, states: PrefetchedStates | None, prefetched: PrefetchedCohort
    ) -> tuple[State, RoundMetrics]:
        if states is None:
            return self.program(state, (), *prefetched, self._keys, self._num_iterations)
        carried_over = state.clients, states.positions
        return self.program(
            state._replace(clients=states.states), carried_over, *prefetched, self._keys, self._num_iterations
        )

    def _prepare_next(
        self,
        store: ClientStore | None,
        finished: FinishedRound | None,
        cohort: Cohort,
        next_cohort: Cohort | None,
        is_last: bool,
    ) -> tuple[PrefetchedCohort | None, PrefetchedStates | None, list[RoundMetrics]]:
        """Do the host's work while a cohort trains: collect the previous round, and prefetch for the next.

        `is_last`: the next round belongs to another call of `advance`, which loads its states itself.
        Returns (the next cohort's examples, its states, the metrics of the previous round).
        """
        metrics, states = self._collect_round(store, finished), None
        if store is not None and next_cohort is not None and not is_last:
            size = self.traced.round.cohort_size
            states = load_states(store, next_cohort, cohort.ids[:, :size], self.traced.layout)
        return None if next_cohort is None else self._prefetcher.prefetch(next_cohort), states, metrics

    def _collect_round(self, store: ClientStore | None, finished: FinishedRound | None) -> list[RoundMetrics]:
        """Wait for a round, store its client states, and return its metrics."""
        if finished is None:
            return []
        if store is not None and finished.clients is not None:
            store_states(store, finished.cohort.ids[:, : self.traced.round.cohort_size], finished.clients)
        return [jax.tree.map(np.asarray, finished.metrics)]

    # ---- programs ----------------------------------------------------------------------------------------------------
    def _initial_state(self, key: Key, inputs: Array) -> State:
        """The initial state; its clients are one cohort if client states are off the device, otherwise all."""
        spec, layout = self.traced.spec, self.traced.layout
        num_rows = layout.round_up(spec.cohort_size) if self._is_stored else layout.count_client_rows(spec.num_clients)
        return initialization.broadcast_clients(self.traced.round.initial_state(key, inputs), num_rows)

    def _round(
        self,
        state: State,
        carried_over: tuple[ClientState, Array] | tuple[()],
        batch: CohortBatch,
        examples: Examples,
        key: Key,
        num_iterations: Array,
    ) -> tuple[State, RoundMetrics]:
        """Run one round.

        `carried_over`: the client states of the previous round, and the positions there of this round's clients
        (`PrefetchedStates.positions`); () if all client states are on the device.
        """
        data = ClientData(examples, batch.train, batch.valid, HIDDEN_TEST_ROWS)
        if not carried_over:
            return self.traced.with_population(state, batch.cohort, data, key, num_iterations)
        last, before = carried_over
        clients = tree.where(before >= 0, self.traced.layout.take(last, jnp.maximum(before, 0)), state.clients)
        return self.traced.cohort_only(state._replace(clients=clients), batch.cohort, data, key, num_iterations)

    @cached_property
    def _evaluation(self) -> StreamedEvaluation:
        start_time = time.perf_counter()
        evaluation = StreamedEvaluation(self.traced, self.shapes, self._prefetcher)
        self.compile_seconds += time.perf_counter() - start_time
        return evaluation
