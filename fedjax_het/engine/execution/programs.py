"""Programs of a run: its initialization, its rounds, and the exchange of client states with a cohort.

A program is a function with the shapes of its arguments, compiled for the devices of its layout. Only the
hyperparameters of a sweep are allocated on devices, so for a single algorithm the devices need not be present.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jax.stages import Wrapped

from fedjax_het import tree
from fedjax_het.engine.execution.loading import CohortBatch, CohortLoader
from fedjax_het.engine.execution.run_spec import ALL_ON_DEVICE, OffloadPolicy
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.parallel.compilation import (
    Program,
    jit_initializer,
    jit_program,
    replicated_shapes,
)
from fedjax_het.engine.parallel.runs import one_run, shapes_of_runs
from fedjax_het.engine.round.initialization import broadcast_clients
from fedjax_het.engine.round.records import RoundMetrics
from fedjax_het.types import Array, ClientState, Examples, HostArray, Key, PyTree, State


class RunPrograms:
    """The programs of a traced run; arguments and results have a leading run axis.

    A round reads and returns the states of its cohort only. Its program is therefore the same, with bitwise equal
    results, whether all client states are on the device or in a ClientStore.

    On a mesh, client states are sharded along the client axis, all else is replicated. All devices have the same number
    of rows; padding rows, which are never sampled, follow the last client.

    Attributes:
        loader: The loader of cohorts.
        slots: The number of slots of a cohort, including padding.
        is_stored: Whether client states are off the device.
        is_whole: Whether a cohort is all rows of the client states in order, so that nothing is gathered.
        state: The shapes of this state, with shardings.
        clients: The shapes of the client states of a cohort, with shardings.
        hyper_parameters: The hyperparameters of a sweep, weakly typed arrays; {} for a single algorithm.
        keys: The shape of the keys.
    """

    def __init__(self, traced: TracedRound, offload: OffloadPolicy = ALL_ON_DEVICE):
        self.traced, self.offload, spec, layout = traced, offload, traced.spec, traced.layout
        self.loader = CohortLoader(traced, offload.examples == "stream")
        self.slots, self.is_stored = layout.round_up(spec.cohort_size), offload.client_states != "device"
        self._num_rows = self.slots if self.is_stored else layout.count_client_rows(spec.num_clients)
        self.is_whole = not self.is_stored and spec.participation.is_everyone and self._num_rows == self.slots
        shardings = [layout.sharding, layout.client_sharding, layout.sharding]
        self._state_shardings = State._make(shardings) if layout.mesh else None
        self.keys = replicated_shapes(jax.eval_shape(spec.keys), layout)
        self.hyper_parameters = spec.hyper_parameters(layout)
        self._initialize = spec.map_over_runs(self._initial_state, (0, 0, None))
        state = shapes_of_runs(traced.shapes.state, spec.num_runs)

        def shard_clients(num_rows: int) -> ClientState:
            options = {"sharding": layout.client_sharding}
            return jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((x.shape[0], num_rows, *x.shape[2:]), x.dtype, **options), state.clients
            )

        server, counters = replicated_shapes((state.server, state.counters), layout)
        self.state, self.clients = State(server, shard_clients(self._num_rows), counters), shard_clients(self.slots)

    def initialization(self, keys: Key) -> Program:
        """() -> the state before the first round; if client states are off the device, its clients are one cohort."""
        example = self.traced.layout.replicate(self.traced.spec.federation.examples.inputs[:1])
        given = self._cut_runs((self.hyper_parameters, keys))
        jitted, (constants, *_) = jit_initializer(
            self._initialize, self.traced.layout, self._state_shardings, *given, example
        )
        arguments = constants, self.hyper_parameters, keys, example
        return self._program("initialization", jitted, arguments, (None, 0, 0, None))

    def round(self) -> Program:
        """(hyperparameters, state, batch, examples, keys) -> (state, metrics). The memory of the state is reused."""
        results = self._state_shardings and (self._state_shardings, self.traced.layout.sharding)
        return self._cohort_program("round", self._run_round, results=results, donate=(1,))

    def measures(self, measure: Callable[..., PyTree]) -> Program:
        """(hyperparameters, state, batch with test rows, examples, keys) -> the values of `measure` in each run."""
        return self._cohort_program("diagnostics", measure, with_test=True, is_quick=True)

    def exchange(self) -> list[Program]:
        """The programs that gather the client states of a cohort, and write them back.

        On the device: (all states, ids) -> states of the cohort; (all states, ids, states of the cohort) -> all states.
        Off the device: (states of the previous round, positions in it, states from the store) -> states of the cohort;
        a position is -1 if the client did not take part in the previous round.
        """
        if self.is_whole:
            return []
        ids = replicated_shapes(self.loader.shapes()[0].cohort.ids, self.traced.layout)
        if self.is_stored:
            return [self._exchange_program("merge", self._merge_client, (self.clients, ids, self.clients))]
        size = self.traced.round.cohort_size

        def put(clients: ClientState, ids: Array, rows: ClientState) -> ClientState:
            return tree.put(clients, ids[:size], tree.take(rows, slice(size)))

        return [
            self._exchange_program("gather", self.traced.layout.take, (self.state.clients, ids)),
            self._exchange_program("scatter", put, (self.state.clients, ids, self.clients), donate=(0,)),
        ]

    def build(
        self,
        name: str,
        function: Callable,
        axes: tuple[PyTree, ...],
        arguments: tuple[PyTree, ...],
        results: PyTree = None,
        donate: tuple[int, ...] = (),
        is_quick: bool = False,
    ) -> Program:
        """Map a function over the runs; see `runs.map_over_runs` and `compilation.jit_program`."""
        layout, over_runs = self.traced.layout, self.traced.spec.map_over_runs(function, axes)
        jitted = jit_program(over_runs, layout, results, donate, is_quick=is_quick)
        return self._program(name, jitted, arguments, axes)

    def _program(self, name: str, jitted: Wrapped, arguments: tuple[PyTree, ...], axes: tuple[PyTree, ...]) -> Program:
        return Program(f"{name}, {self.traced.layout}", jitted, arguments, axes, self.traced.spec.num_calls)

    def _cut_runs(self, values: PyTree) -> PyTree:
        """The runs of one call, or their shapes."""
        return one_run(values) if self.traced.spec.num_calls > 1 else values

    def _cohort_program(self, name: str, function: Callable, *, with_test: bool = False, **options) -> Program:
        loaded = replicated_shapes(self.loader.shapes(with_test), self.traced.layout)
        arguments = self.hyper_parameters, self.state._replace(clients=self.clients), *loaded, self.keys
        return self.build(name, function, (0, 0, 0, None, 0), arguments, **options)

    def _exchange_program(
        self, name: str, function: Callable, arguments: tuple[PyTree, ...], donate: tuple[int, ...] = ()
    ) -> Program:
        layout = self.traced.layout
        jitted = jit_program(jax.vmap(function), layout, layout.client_sharding, donate)
        return Program(f"{name}, {layout}", jitted, arguments)

    def _initial_state(self, hyper_parameters: Mapping[str, Array], key: Key, inputs: HostArray) -> State:
        round = self.traced.with_hyper_parameters(hyper_parameters).round
        return broadcast_clients(round.initial_state(key, inputs), self._num_rows)

    def _run_round(
        self, hyper_parameters: Mapping[str, Array], state: State, batch: CohortBatch, examples: Examples, key: Key
    ) -> tuple[State, RoundMetrics]:
        data = batch.with_examples(examples)
        after, metrics, _ = self.traced.train(dict(hyper_parameters), state, batch.cohort, data, key)
        missing = self.slots - self.traced.round.cohort_size
        padded = lambda x: jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))  # noqa: E731
        return after._replace(clients=jax.tree.map(padded, after.clients)), metrics

    def _merge_client(self, last: ClientState, positions: Array, stored: ClientState) -> ClientState:
        return tree.where(positions >= 0, self.traced.layout.take(last, jnp.maximum(positions, 0)), stored)
