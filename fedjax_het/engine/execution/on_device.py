"""Execution of rounds with everything on the device: the rounds between two evaluations are one program."""

import time
from collections.abc import Callable
from functools import cached_property

import jax
import numpy as np
from jax.stages import Compiled

from fedjax_het.engine.evaluation.evaluate import BATCH, Evaluation, held_out_batches, personal_rows
from fedjax_het.engine.evaluation.predictions import add_metrics
from fedjax_het.engine.evaluation.scoring import HeldOut
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.executor import Executor
from fedjax_het.engine.execution.programs import RunPrograms
from fedjax_het.engine.execution.run_spec import ALL_ON_DEVICE
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.round.phases import RoundMetrics
from fedjax_het.types import ClientData, PyTree, Rows, State


class OnDeviceExecutor(Executor):
    """An `Executor` that keeps everything on the device: one program for rounds, one for the evaluation.

    The data are copied to the device when they are first needed.
    """

    offload = ALL_ON_DEVICE

    def __init__(self, traced: TracedRound):
        """Compile the rounds; the evaluation is compiled when it or `peak_bytes` is first needed."""
        self.traced, start_time = traced, time.perf_counter()
        self._programs = RunPrograms(traced)
        self._hyper_parameters = self._programs.hyper_parameters
        self._keys = traced.layout.replicate(traced.spec.keys())
        self._schedule = traced.layout.replicate(traced.spec.schedule)
        self.program = self._programs.rounds().compile()
        self.compile_seconds = time.perf_counter() - start_time

    def start(self) -> State:
        return self._programs.init(self._hyper_parameters, self._keys, self._data)

    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]:
        number = self.traced.layout.replicate(np.int32(num_rounds))
        arguments = self._data, self._keys, self._schedule, number
        state, metrics = self.program(self._hyper_parameters, state, *arguments)
        return state, jax.tree.map(lambda x: np.asarray(x)[:, :num_rounds], metrics)

    def evaluate(self, state: State) -> Evaluation:
        arguments = self._data, self._held_out, self._personal_rows, self._keys
        results, spec = self._evaluation(self._hyper_parameters, state, *arguments), self.traced.spec
        evaluation, predictions = jax.tree.map(np.asarray, results)
        return add_metrics(evaluation, predictions, spec.metrics, spec.federation, spec.personal_on_test)

    def compile_measures(self, measure: Callable[..., PyTree]) -> tuple[Callable[[State], PyTree], int]:
        """Compile a function that reads the state without donating it.

        Args:
            measure: (hyperparameters, state, data, key, schedule or None) of one run -> measured values.

        Returns:
            (A function of the state, whose results are NumPy arrays [runs, ...]; its peak bytes on one device.)
        """
        program, hyper_parameters = self._programs.measures(measure).compile(), self._hyper_parameters

        def measure_state(state: State) -> PyTree:
            return jax.tree.map(np.asarray, program(hyper_parameters, state, self._data, self._keys, self._schedule))

        return measure_state, self._peak_bytes(cost.temporary_bytes(program))

    def release(self) -> None:
        for name in ("_data", "_held_out", "_personal_rows"):
            self.__dict__.pop(name, None)

    @property
    def peak_bytes(self) -> int:
        return self._peak_bytes(cost.temporary_bytes(self.program), cost.temporary_bytes(self._evaluation))

    # ---- programs and data -------------------------------------------------------------------------------------------
    @cached_property
    def _evaluation(self) -> Compiled:
        start_time = time.perf_counter()
        program = self._programs.evaluation().compile()
        self.compile_seconds += time.perf_counter() - start_time
        return program

    @cached_property
    def _held_out(self) -> HeldOut:
        return self.traced.layout.replicate(held_out_batches(self.traced.spec.federation, BATCH)[0])

    @cached_property
    def _personal_rows(self) -> dict[str, Rows]:
        spec = self.traced.spec
        tables = personal_rows(spec.federation, spec.personal_on_test)
        tables.pop("personal")  # already on the devices
        return self.traced.layout.replicate(tables) | {"personal": self._data.test}

    @cached_property
    def _data(self) -> ClientData:
        return self.traced.layout.replicate(self.traced.spec.federation.data)
