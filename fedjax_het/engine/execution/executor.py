"""Execution of rounds and evaluations, with client states and examples on the device or streamed from the host."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path

import jax
import numpy as np

from fedjax_het.engine.evaluation.evaluate import Evaluation
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.client_states import ClientStates, DeviceStates, StoredStates
from fedjax_het.engine.execution.evaluator import Evaluator
from fedjax_het.engine.execution.loading import LoadedCohort
from fedjax_het.engine.execution.programs import RunPrograms
from fedjax_het.engine.execution.run_spec import OffloadPolicy
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.parallel.runs import Executable
from fedjax_het.engine.round.records import RoundMetrics
from fedjax_het.engine.storage.client_store import ClientStore
from fedjax_het.types import ClientState, PyTree, State


class Executor:
    """A round compiled for one layout and one `OffloadPolicy`, and its evaluation.

    Rounds are dispatched without waiting for their results: while a round runs, the host collects the previous one, and
    reads the next cohort's examples and client states. If cohorts depend on what clients report, rounds run one by one.
    """

    def __init__(
        self, traced: TracedRound, offload: OffloadPolicy, folder: Path | None = None, *, is_tentative: bool = False
    ):
        """Compile a round, and begin to compile the evaluation and the initialization.

        Args:
            traced: The round.
            offload: The location of client states and examples.
            folder: The folder for client states on disk.
            is_tentative: Whether another layout may be chosen, so that only the round is compiled. The evaluation is
                then compiled when it or `peak_bytes` is first needed.
        """
        self.traced, self.offload, start_time = traced, offload, time.perf_counter()
        self._folder = folder if offload.client_states == "disk" else None
        self.programs = programs = RunPrograms(traced, offload)
        self._loader, self._keys = programs.loader, traced.layout.replicate(traced.spec.keys())
        self._loaded: tuple[int, LoadedCohort | None] = (-1, None)  # a round's number and cohort
        round = programs.round().begin_compilation()
        exchange = [program.begin_compilation() for program in programs.exchange()]
        self._loader.begin_compilation()
        self.exchange = [program.result() for program in exchange]  # small programs
        if not is_tentative:
            _ = self._initialization, self._evaluator  # begins to compile both
        self.program = round.result()
        self.compile_seconds = time.perf_counter() - start_time

    # ---- running -----------------------------------------------------------------------------------------------------
    def start(self) -> State:
        """The state before the first round."""
        spec, programs = self.traced.spec, self.programs
        initialize, arguments = self._initialization
        state = initialize.result()(*arguments)
        if not programs.is_stored:
            return state
        first = jax.tree.map(lambda x: np.asarray(x[:, 0]), state.clients)
        return state._replace(clients=ClientStore(first, spec.num_clients, self._folder))

    @cached_property
    def _initialization(self) -> tuple[Future[Executable], tuple[PyTree, ...]]:
        """(The program, its arguments.)"""
        program = self.programs.initialization(self._keys)
        return program.begin_compilation(), program.arguments

    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]:
        """Run several rounds, which invalidates `state`. The metrics are NumPy arrays [runs, num_rounds, ...]."""
        if self.traced.spec.participation.init and num_rounds > 1:  # the next cohort depends on this round
            blocks = []
            for _ in range(num_rounds):
                state, block = self.advance(state, 1)
                blocks.append(block)
            return state, jax.tree.map(lambda *rounds: np.concatenate(rounds, axis=1), *blocks)
        first = int(np.asarray(state.server.round)[0])
        cohorts = self._loader.draw(first, state.server.participation)
        clients, metrics = self._open(state.clients), []
        number, loaded = self._loaded
        if number != first or loaded is None:
            loaded = self._loader.load(cohorts[0], first)
        clients.prefetch(cohorts[0])
        running: list[RoundMetrics] = []
        for number, next_cohort in enumerate([*cohorts[1:], None][:num_rounds], first + 1):
            ids = loaded[0].cohort.ids
            state, round_metrics = self.program(
                self.programs.hyper_parameters, state._replace(clients=clients.take(ids)), *loaded, self._keys
            )
            clients.put(ids, state.clients)
            # The device is busy with this round from here on.
            metrics += jax.tree.map(np.asarray, running)
            running = [round_metrics]
            if next_cohort is not None and number < self.traced.spec.rounds:
                loaded = self._loader.load(next_cohort, number)
                self._loaded = number, loaded
            if next_cohort is not None and number < first + num_rounds:
                clients.prefetch(next_cohort)
        metrics += jax.tree.map(np.asarray, running)
        stacked = jax.tree.map(lambda *rounds: np.stack(rounds, axis=1), *metrics)
        return state._replace(clients=clients.finish()), stacked

    def evaluate(self, state: State) -> Evaluation:
        """Evaluate on all held-out examples; the results are NumPy arrays."""
        return self._evaluator(state)

    def compile_measures(self, measure: Callable[..., PyTree]) -> tuple[Callable[[State], PyTree], int]:
        """Compile a function that reads the next round's cohort, without changing the state.

        Args:
            measure: (hyperparameters, state with the cohort's clients, batch with test rows, examples, key) of one run
                -> measured values.

        Returns:
            (A function of the state, whose results are NumPy arrays [runs, ...]; its peak bytes on one device.)
        """
        program = self.programs.measures(measure).begin_compilation().result()

        def measure_state(state: State) -> PyTree:
            first = int(np.asarray(state.server.round)[0])
            cohort = self._loader.draw(first, state.server.participation)[0]
            loaded, clients = self._loader.load(cohort, first, with_test=True), self._open(state.clients)
            clients.prefetch(cohort)
            own = state._replace(clients=clients.take(loaded[0].cohort.ids))
            return jax.tree.map(np.asarray, program(self.programs.hyper_parameters, own, *loaded, self._keys))

        return measure_state, self._peak_bytes(cost.temporary_bytes(program))

    def release(self) -> None:
        """Free the memory of the data on the device."""
        self._loader.release()
        self._loaded = (-1, None)

    def _open(self, clients: ClientState | ClientStore) -> ClientStates:
        if isinstance(clients, ClientStore):
            return StoredStates(clients, self.traced.round.cohort_size, *self.exchange)
        return DeviceStates(clients, *self.exchange)

    # ---- memory ------------------------------------------------------------------------------------------------------
    @property
    def round_bytes(self) -> int:
        """Peak bytes on one device in rounds."""
        return self._peak_bytes(cost.temporary_bytes(self.program))

    @property
    def peak_bytes(self) -> int:
        """Peak bytes on one device, in rounds or in evaluation; waits until the evaluation is compiled."""
        start_time = time.perf_counter()
        extra_bytes = self._evaluator.extra_bytes
        self.compile_seconds += time.perf_counter() - start_time
        return self._peak_bytes(cost.temporary_bytes(self.program), extra_bytes)

    def _peak_bytes(self, *temporary: int) -> int:
        return cost.bytes_before_round(cost.resident_bytes(self.traced, self.offload)) + max(temporary)

    @cached_property
    def _evaluator(self) -> Evaluator:
        evaluator = Evaluator(self.programs)
        evaluator.begin_compilation(self.exchange, self._keys)
        return evaluator
