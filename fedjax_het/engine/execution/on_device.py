"""Execution of rounds with everything on the device: the rounds between two evaluations are one program."""

import time
from collections.abc import Callable, Mapping
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled

from fedjax_het import tree
from fedjax_het.engine.evaluation.evaluate import BATCH, Evaluation, held_out_batches, make_evaluation, personal_rows
from fedjax_het.engine.evaluation.scoring import HeldOut
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.executor import Executor
from fedjax_het.engine.execution.run_spec import ALL_ON_DEVICE
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.parallel import sharding
from fedjax_het.engine.parallel.compilation import compile_program, jit_initializer, replicated_shapes
from fedjax_het.engine.round import client_step
from fedjax_het.engine.round.program import RoundMetrics
from fedjax_het.types import Array, ClientData, Key, PyTree, Rows, State


class OnDeviceExecutor(Executor):
    """An `Executor` that keeps everything on the device: one program for rounds, one for the evaluation.

    The data are copied to the device when they are first needed.
    """

    offload = ALL_ON_DEVICE

    def __init__(self, traced: TracedRound):
        """Compile the rounds; the evaluation is compiled when it or `peak_bytes` is first needed."""
        self.traced, start_time = traced, time.perf_counter()
        spec, layout = traced.spec, traced.layout
        shardings = sharding.state_shardings(layout)
        self._keys, self._data_shapes = layout.replicate(spec.keys()), replicated_shapes(spec.federation.data, layout)
        self._hyper_parameters = layout.jit(spec.hyper_parameters, layout.sharding)()
        self.init = jit_initializer(spec.map_over_runs(self._initial_state, (0, 0, None)), layout, shardings)
        state = jax.eval_shape(self.init, self._hyper_parameters, self._keys, self._data_shapes)
        self.shapes = sharding.with_shardings(state, layout)
        self.program = compile_program(
            spec.map_over_runs(self._run_rounds, (0, 0, None, 0, None)),
            layout,
            *(self._hyper_parameters, self.shapes, self._data_shapes, self._keys, layout.replicate(np.int32(1))),
            results=shardings and (shardings, layout.sharding),
            donate=(1,),
        )
        self.compile_seconds = time.perf_counter() - start_time

    def start(self) -> State:
        return self.init(self._hyper_parameters, self._keys, self._data)

    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]:
        number = self.traced.layout.replicate(np.int32(num_rounds))
        state, metrics = self.program(self._hyper_parameters, state, self._data, self._keys, number)
        return state, jax.tree.map(lambda x: np.asarray(x)[:, :num_rounds], metrics)

    def evaluate(self, state: State) -> Evaluation:
        program, data = self._evaluation, self._data
        evaluation = program(self._hyper_parameters, state, data.examples, self._held_out, self._personal_rows)
        return jax.tree.map(np.asarray, evaluation)

    def compile_measures(
        self, measure: Callable[[Mapping[str, Array], State, ClientData, Key], PyTree]
    ) -> tuple[Callable[[State], PyTree], int]:
        """Compile a function that reads the state, and does not consume it.

        Args:
            measure: (hyper-parameters, state, data, key) of one run -> what is measured.

        Returns:
            (A function of the state, whose results are NumPy arrays [runs, ...]; its peak bytes on one device.)
        """
        spec, hyper_parameters = self.traced.spec, self._hyper_parameters
        arguments = hyper_parameters, self.shapes, self._data_shapes, self._keys
        program = compile_program(spec.map_over_runs(measure, (0, 0, None, 0)), self.traced.layout, *arguments)

        def measure_state(state: State) -> PyTree:
            return jax.tree.map(np.asarray, program(hyper_parameters, state, self._data, self._keys))

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
        start_time, traced, spec = time.perf_counter(), self.traced, self.traced.spec
        held, groups = held_out_batches(spec.federation, BATCH)
        own = personal_rows(spec.federation, spec.personal_on_test)
        slots = traced.layout.round_up(traced.round.cohort_size)
        shapes = (self._data_shapes.examples, *replicated_shapes((held, own), traced.layout))

        def evaluate(hyper_parameters: Mapping[str, Array], *arguments: PyTree) -> Evaluation:
            problem = traced.with_hyper_parameters(hyper_parameters).round.problem
            return make_evaluation(problem, groups, traced.layout, BATCH, slots)(*arguments)

        program = spec.map_over_runs(evaluate, (0, 0, None, None, None))
        program = compile_program(program, traced.layout, self._hyper_parameters, self.shapes, *shapes)
        self.compile_seconds += time.perf_counter() - start_time
        return program

    @cached_property
    def _held_out(self) -> HeldOut:
        return self.traced.layout.replicate(held_out_batches(self.traced.spec.federation, BATCH)[0])

    @cached_property
    def _personal_rows(self) -> dict[str, Rows]:
        spec = self.traced.spec
        tables = personal_rows(spec.federation, spec.personal_on_test)
        tables.pop("personal")  # it is on the devices already
        return self.traced.layout.replicate(tables) | {"personal": self._data.test}

    @cached_property
    def _data(self) -> ClientData:
        return self.traced.layout.replicate(self.traced.spec.federation.data)

    def _initial_state(self, hyper_parameters: Mapping[str, Array], key: Key, data: ClientData) -> State:
        traced = self.traced.with_hyper_parameters(hyper_parameters)
        return sharding.initialize_with_padding(traced.round.init, traced.layout)(key, data)

    def _run_rounds(
        self, hyper_parameters: Mapping[str, Array], state: State, data: ClientData, key: Key, num_rounds: Array
    ) -> tuple[State, RoundMetrics]:
        """Run `num_rounds` rounds in a loop; the metrics have room for the longest block."""
        traced = self.traced.with_hyper_parameters(hyper_parameters)
        empty = jax.tree.map(lambda x: jnp.zeros((traced.spec.block, *x.shape), x.dtype), traced.shapes.metrics)
        opaque_one = jnp.minimum(num_rounds, 1)  # see TracedRound.cohort_only

        def run_round(index: Array, carry: tuple[State, RoundMetrics]) -> tuple[State, RoundMetrics]:
            cohort = traced.round.draw(key, carry[0].server.round)
            state, metrics = traced.with_population(
                carry[0], cohort, client_step.cohort_data(data, cohort), key, opaque_one
            )
            return state, tree.put(carry[1], index, metrics)

        return jax.lax.fori_loop(0, num_rounds, run_round, (state, empty))
