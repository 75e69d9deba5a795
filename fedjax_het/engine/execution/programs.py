"""Programs of a run that keeps everything on the device: its initialization, its rounds and its evaluation.

A program is a function with the shapes of its arguments, compiled for the devices of its layout. Only the
hyperparameters of a sweep are allocated on devices, so for a single algorithm the devices need not be present.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled, Wrapped

from fedjax_het import tree
from fedjax_het.engine.evaluation.evaluate import (
    BATCH,
    Evaluation,
    Predictions,
    held_out_batches,
    make_evaluation,
    personal_rows,
)
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.parallel import sharding
from fedjax_het.engine.parallel.compilation import COMPILATION_LOG, jit_initializer, jit_program, replicated_shapes
from fedjax_het.engine.round import client_step
from fedjax_het.engine.round.event_schedule import EventSchedule
from fedjax_het.engine.round.phases import RoundMetrics
from fedjax_het.types import Array, ClientData, Key, PyTree, State


class Program(NamedTuple):
    """A jitted function and its arguments or their shapes."""

    name: str
    function: Wrapped
    arguments: tuple[PyTree, ...]

    def compile(self) -> Compiled:
        COMPILATION_LOG.info("compiling %s", self.name)
        return self.function.lower(*self.arguments).compile()


class RunPrograms:
    """The programs of a traced run; arguments and results have a leading run axis.

    Attributes:
        init: (hyperparameters, keys, data) -> the state before the first round.
        state: The shapes of the state, with shardings.
        data: The shapes of the clients' data.
        schedule: The shapes of the events of asynchronous rounds; None in synchronous ones.
        hyper_parameters: The hyperparameters of a sweep, weakly typed arrays; {} for a single algorithm.
        keys: The shape of the keys.
    """

    def __init__(self, traced: TracedRound):
        """Find the shapes of the run's state, which traces its initialization."""
        self.traced, spec, layout = traced, traced.spec, traced.layout
        self._state_shardings = sharding.state_shardings(layout)
        self.data = replicated_shapes(spec.federation.data, layout)
        self.keys = replicated_shapes(jax.eval_shape(spec.keys), layout)
        self.schedule = replicated_shapes(spec.schedule, layout)
        self.hyper_parameters = layout.jit(spec.hyper_parameters, layout.sharding)() if spec.sweep.values else {}
        self.init = jit_initializer(
            spec.map_over_runs(self._initial_state, (0, 0, None)), layout, self._state_shardings
        )
        state = jax.eval_shape(self.init, self.hyper_parameters, self.keys, self.data)
        self.state = sharding.with_shardings(state, layout)

    def rounds(self) -> Program:
        """(hyperparameters, state, data, keys, schedule, number of rounds) -> (state, metrics [runs, block, ...]).

        The memory of the state is reused.
        """
        number = replicated_shapes(np.int32(1), self.traced.layout)
        results = self._state_shardings and (self._state_shardings, self.traced.layout.sharding)
        arguments = self.hyper_parameters, self.state, self.data, self.keys, self.schedule, number
        return self._program("rounds", self._run_rounds, (0, 0, None, 0, 0, None), arguments, results, donate=(1,))

    def evaluation(self) -> Program:
        """(hyperparameters, state, data, held-out batches, rows of personal models, keys) -> as `make_evaluation`."""
        traced, spec = self.traced, self.traced.spec
        held_out, groups = held_out_batches(spec.federation, BATCH)
        own = personal_rows(spec.federation, spec.personal_on_test)
        slots = traced.layout.round_up(traced.round.cohort_size)

        def evaluate(
            hyper_parameters: Mapping[str, Array], *arguments: PyTree
        ) -> tuple[Evaluation, Predictions | None]:
            round = traced.with_hyper_parameters(hyper_parameters).round
            options = slots, round.personalize, bool(spec.metrics)
            return make_evaluation(round.problem, groups, traced.layout, BATCH, *options)(*arguments)

        tables = replicated_shapes((held_out, own), traced.layout)
        return self._program(
            "evaluation",
            evaluate,
            (0, 0, None, None, None, 0),
            (self.hyper_parameters, self.state, self.data, *tables, self.keys),
            is_quick=True,
        )

    def measures(self, measure: Callable[..., PyTree]) -> Program:
        """(hyperparameters, state, data, keys, schedule) -> the values of `measure` in each run."""
        return self._program(
            "diagnostics",
            measure,
            (0, 0, None, 0, 0),
            (self.hyper_parameters, self.state, self.data, self.keys, self.schedule),
            is_quick=True,
        )

    def _program(
        self,
        name: str,
        function: Callable,
        axes: tuple[int | None, ...],
        arguments: tuple[PyTree, ...],
        results: PyTree = None,
        donate: tuple[int, ...] = (),
        is_quick: bool = False,
    ) -> Program:
        layout = self.traced.layout
        over_runs = self.traced.spec.map_over_runs(function, axes)
        jitted = jit_program(over_runs, layout, results, donate, is_quick=is_quick)
        return Program(f"{name}, {layout}", jitted, arguments)

    def _initial_state(self, hyper_parameters: Mapping[str, Array], key: Key, data: ClientData) -> State:
        traced = self.traced.with_hyper_parameters(hyper_parameters)
        return sharding.initialize_with_padding(traced.round.init, traced.layout)(key, data)

    def _run_rounds(
        self,
        hyper_parameters: Mapping[str, Array],
        state: State,
        data: ClientData,
        key: Key,
        schedule: EventSchedule | None,
        num_rounds: Array,
    ) -> tuple[State, RoundMetrics]:
        """Run `num_rounds` rounds in a loop; the metrics have room for the longest block."""
        traced = self.traced.with_hyper_parameters(hyper_parameters)
        empty = jax.tree.map(lambda x: jnp.zeros((traced.spec.block, *x.shape), x.dtype), traced.shapes.metrics)
        num_iterations = jnp.minimum(num_rounds, 1)  # see TracedRound.cohort_only

        def run_round(index: Array, carry: tuple[State, RoundMetrics]) -> tuple[State, RoundMetrics]:
            cohort = traced.round.draw(key, carry[0].server.round, schedule)
            state, metrics = traced.with_population(
                carry[0], cohort, client_step.cohort_data(data, cohort), key, num_iterations
            )
            return state, tree.put(carry[1], index, metrics)

        with jax.named_scope("rounds"):
            return jax.lax.fori_loop(0, num_rounds, run_round, (state, empty))
