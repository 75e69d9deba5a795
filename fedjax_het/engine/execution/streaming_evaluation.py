"""Evaluation that streams client states, examples or both from the host, in prefetched pieces."""

import math
from concurrent.futures import Executor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct

from fedjax_het import tree
from fedjax_het.engine.evaluation import scoring
from fedjax_het.engine.evaluation.evaluate import (
    BATCH,
    Evaluation,
    Predictions,
    collect_scores,
    has_own_models,
    held_out_batches,
    personal_rows,
)
from fedjax_het.engine.evaluation.predictions import add_metrics
from fedjax_het.engine.evaluation.scoring import Batches, HeldOut
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.prefetch import ExamplePrefetcher, prefetch, select_rows
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.parallel.compilation import COMPILATION_LOG, compile_program, replicated_shapes
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.engine.storage.client_store import ClientStore
from fedjax_het.labels import are_tokens
from fedjax_het.problem import HIDDEN_TEST_ROWS
from fedjax_het.types import (
    Array,
    ClientData,
    ClientState,
    Examples,
    HostArray,
    Key,
    PyTree,
    Rows,
    ServerState,
    State,
    Variables,
)

Clients = ClientState | ClientStore
_compile_quickly = partial(compile_program, is_quick=True)
Tables = dict[str, Rows]
_TRAINING = ("train", "valid")


class StreamedEvaluation:
    """The evaluation of `make_evaluation` in pieces.

    Applies the same functions to the same batches and client blocks in the same order; results are bitwise equal.
    """

    def __init__(self, traced: TracedRound, state: State, prefetcher: ExamplePrefetcher):
        """Compile the programs.

        Args:
            traced: The round.
            state: The shapes of a round's input state.
            prefetcher: The loader of examples.
        """
        self._traced, self._prefetcher, self._layout, spec = traced, prefetcher, traced.layout, traced.spec
        self._held, self._groups = held_out_batches(spec.federation, BATCH)
        self._num_segments = sum(size for _, size in self._groups) + 1
        self._steps = [self._steps_per_piece(batches) for batches in self._held]
        self._pieces = [
            (table, first)
            for table, (batches, steps) in enumerate(zip(self._held, self._steps, strict=True))
            for first in range(0, len(batches.index), steps)
        ]
        self._personal_rows = personal_rows(spec.federation, spec.personal_on_test)
        self._block = self._layout.round_up(spec.cohort_size)  # clients at a time
        self._num_blocks = -(-spec.num_clients // self._block)
        self._is_made = traced.round.personalize is not None
        self._has_personal_leaves = has_own_models(state.clients, None)
        self._has_own_models = has_own_models(state.clients, traced.round.personalize)
        self._keys = self._layout.replicate(spec.keys())
        self._compile(state)

    def __call__(self, state: State, pool: Executor) -> Evaluation:
        """Evaluate a state; the results are NumPy arrays. The pool loads the next piece."""
        spec, server, totals = self._traced.spec, state.server, self._zeros(self._total_shapes)
        predicted: list[list[np.ndarray]] = [[] for _ in self._held]
        own: dict[str, np.ndarray] = {}
        own_predicted: dict[str, HostArray] = {}
        tested = server._replace(shared=self._evaluated(server))
        mean_personal = self._mean_personal(state.clients, pool) if self._has_personal_leaves else {}
        inputs = prefetch(pool, self._load_piece, self._pieces)
        for (table, _), piece in zip(self._pieces, inputs, strict=True):
            # Waiting prevents pieces from accumulating on the device.
            totals, values = jax.block_until_ready(
                self._score[table](tested.shared, mean_personal, server.round, totals, *piece)
            )
            predicted[table] += map(np.asarray, values)
        if self._has_own_models:
            own, own_predicted = self._score_personal(state._replace(server=tested), pool)
        is_text = are_tokens(spec.federation.examples.inputs)
        evaluation = collect_scores(self._groups, np.asarray(totals), own, is_text)
        predictions = None
        if spec.metrics:
            pieces = zip(predicted, self._held, strict=True)
            held = tuple(np.concatenate(parts, axis=1)[:, : len(batches.index)] for parts, batches in pieces)
            predictions = Predictions(held, own_predicted)
        return add_metrics(evaluation, predictions, spec.metrics, spec.federation, spec.personal_on_test)

    @property
    def extra_bytes(self) -> int:
        """Peak bytes per device beyond those of a round; two pieces replace a round's examples."""
        if not self._prefetcher.is_streaming:
            return max(cost.temporary_bytes(program) for program, _ in self._program_inputs)
        sizes = [cost.temporary_bytes(program) + 2 * tree.num_bytes(inputs) for program, inputs in self._program_inputs]
        return max(sizes) - tree.num_bytes(self._prefetcher.shapes)

    def _score_personal(self, state: State, pool: Executor) -> tuple[dict[str, np.ndarray], dict[str, HostArray]]:
        """(Sums, predictions) of personal models; no predictions without requested metrics."""
        blocks = prefetch(pool, lambda number: self._load_block(state.clients, number), range(self._num_blocks))
        parts = [jax.tree.map(np.asarray, self._score_own(state.server, *block, self._keys)) for block in blocks]
        num_clients = self._traced.spec.num_clients
        joined = jax.tree.map(lambda *each: np.concatenate(each, axis=1)[:, :num_clients], *parts)
        return {name: sums for name, (sums, _) in joined.items()}, {name: each for name, (_, each) in joined.items()}

    def _mean_personal(self, clients: Clients, pool: Executor) -> Variables:
        """`scoring.mean_personal_variables`; blocks without trained clients, which add zeros, are skipped."""
        rounds = np.asarray(clients.rounds)[:, : self._traced.spec.num_clients]
        shares = np.asarray(self._shares(self._layout.replicate(rounds)))
        ids, is_client = self._client_ids(np.arange(self._num_blocks)[:, None])
        shares = np.where(is_client, shares[:, ids], 0).astype(shares.dtype)  # [seeds, blocks, block]
        nonempty, total = np.flatnonzero(shares.any(axis=(0, 2))).tolist(), self._zeros(self._mean_shapes)
        personal = prefetch(pool, lambda number: self._states_of(clients, ids[number], False).personal, nonempty)
        for number, block in zip(nonempty, personal, strict=True):
            total = jax.block_until_ready(self._add_shares(total, block, self._layout.replicate(shares[:, number])))
        return total

    # ---- loading of pieces -------------------------------------------------------------------------------------------
    def _steps_per_piece(self, batches: Batches) -> int:
        """With streamed examples, the number of steps for half of a round's examples, but at least two."""
        num_steps, *step = batches.index.shape
        max_steps = self._prefetcher.num_slots // (2 * math.prod(step)) if self._prefetcher.is_streaming else num_steps
        return min(max(2, max_steps), num_steps)

    def _load_piece(self, at: tuple[int, int]) -> tuple[Examples, HeldOut]:
        table, first = at
        steps, batches = self._steps[table], self._held[table]
        part = jax.tree.map(lambda x: x[first : first + steps], batches)
        missing = steps - len(part.count)
        index, count, segment = (np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) for x in part)
        segment[steps - missing :] = self._num_segments - 1
        rows = Rows(index.reshape(-1, index.shape[-1]), np.full(count.size, index.shape[-1]))
        examples, (rows,) = self._prefetcher.load_examples((rows,), index.size + 1)
        return examples, (Batches(rows.index.reshape(index.shape), *self._layout.replicate((count, segment))),)

    def _load_block(self, clients: Clients, number: int) -> tuple[ClientState, Cohort, Examples, Tables]:
        block = Cohort(*self._client_ids(number))
        tables = {
            name: select_rows(rows, block.ids, block.is_here) if self._has_row_per_client(rows) else rows
            for name, rows in self._tables.items()
        }
        examples, loaded = self._prefetcher.load_examples(tuple(tables.values()), self._num_example_slots)
        states = self._states_of(clients, block.ids, self._is_made)
        return states, self._layout.replicate(block), examples, dict(zip(tables, loaded, strict=True))

    def _states_of(self, clients: Clients, ids: HostArray, with_memory: bool) -> ClientState:
        is_stored = isinstance(clients, ClientStore)
        states = clients.take(np.broadcast_to(ids, (self._traced.spec.num_runs, len(ids)))) if is_stored else clients
        states = states if with_memory else states._replace(memory={})
        replicate = self._layout.replicate
        return replicate(states) if is_stored else self._take[with_memory](states, replicate(ids))

    def _client_ids(self, number: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(Ids of a block of clients, whether each is a client rather than padding.)"""
        ids, num_clients = number * self._block + np.arange(self._block), self._traced.spec.num_clients
        return np.minimum(ids, num_clients - 1).astype(np.int32), ids < num_clients

    def _has_row_per_client(self, rows: Rows) -> bool:
        """Whether each client has its own row, rather than all sharing one."""
        return len(rows.count) == self._traced.spec.num_clients

    @property
    def _tables(self) -> Tables:
        """The index tables for scoring personal models, and for training them if a rule does so."""
        data = self._traced.spec.federation.data
        training = dict(zip(_TRAINING, (data.train, data.valid), strict=True)) if self._is_made else {}
        return {**self._personal_rows, **training}

    @property
    def _num_example_slots(self) -> int:
        """Slots for the examples of any block of clients, plus one for padding."""
        total = np.ones(self._num_blocks, int)
        for rows in self._tables.values():
            if self._has_row_per_client(rows):
                counts = np.pad(rows.count, (0, self._num_blocks * self._block - len(rows.count)))
                total += counts.reshape(self._num_blocks, -1).sum(axis=1)
            else:
                total += rows.count.sum()
        return int(total.max())

    def _zeros(self, shapes: PyTree) -> PyTree:
        return self._layout.replicate(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes))

    # ---- programs ----------------------------------------------------------------------------------------------------
    def _compile(self, state: State) -> None:
        COMPILATION_LOG.info("compiling evaluation, %s", self._layout)
        spec, problem, layout, server = self._traced.spec, self._traced.round.problem, self._layout, state.server
        self._evaluated = jax.jit(spec.map_over_runs(problem.evaluated, (0,)))
        num_scores = len(scoring.score_names(spec.federation.examples.labels))
        self._total_shapes = ShapeDtypeStruct((spec.num_runs, self._num_segments, num_scores), _float_dtype())
        self._mean_shapes = _with_leading_axes((spec.num_runs,), state.clients.personal)

        def score(shared, mean_personal, round, totals, examples, held):
            variables = tree.merge(shared, mean_personal)
            return scoring.add_batches(problem, variables, round, examples, totals, held, bool(spec.metrics))

        self._score, self._program_inputs = [], []
        for steps, batches in zip(self._steps, self._held, strict=True):
            held = jax.tree.map(lambda x, steps=steps: ShapeDtypeStruct((steps, *x.shape[1:]), np.int32), (batches,))
            examples = self._prefetcher.shapes_of_examples(held[0].index.size + 1)
            arguments = replicated_shapes(
                (server.shared, self._mean_shapes, server.round, self._total_shapes, examples, held), layout
            )
            program = _compile_quickly(
                spec.map_over_runs(score, (0, 0, 0, 0, None, None)), layout, *arguments, donate=(3,)
            )
            self._score.append(program)
            self._program_inputs.append((program, arguments[4:]))
        ids = replicated_shapes(ShapeDtypeStruct((self._block,), np.int32), layout)
        take = spec.map_over_runs(self._layout.take, (0, None))
        needed = {False: state.clients._replace(memory={}), True: state.clients}  # with memory or without
        if self._has_own_models:
            self._take = {key: compile_program(take, layout, needed[key], ids) for key in {False, self._is_made}}
            self._compile_own_models(state.server, needed[self._is_made])
        if self._has_personal_leaves:
            self._compile_mean_personal(state.clients.personal)

    def _compile_own_models(self, server: ServerState, clients: ClientState) -> None:
        spec, round, layout, size = self._traced.spec, self._traced.round, self._layout, self._block
        no_rows = Rows(np.zeros((size, 1), np.int32), np.zeros(size, np.int32))

        def score_own(
            server: ServerState,
            clients: ClientState,
            block: Cohort,
            examples: Examples,
            rows: Tables,
            key: Key,
        ) -> dict[str, tuple[Array, Array | None]]:
            places = block._replace(ids=jnp.arange(size))
            tables = {name: scoring.rows_of_block(each, places) for name, each in rows.items()}
            train, valid = (tables.pop(name, no_rows) for name in _TRAINING)
            data = ClientData(examples, train, valid, HIDDEN_TEST_ROWS)
            of_block = clients, data, tables, block, key, bool(spec.metrics)
            return scoring.score_own_models(round.problem, round.personalize, layout, BATCH, server, *of_block)

        def shape_of_rows(rows: Rows) -> Rows:
            num = size if self._has_row_per_client(rows) else 1
            return jax.tree.map(lambda x: ShapeDtypeStruct((num, *x.shape[1:]), np.int32), rows)

        block = jax.eval_shape(lambda: Cohort(jnp.zeros(size, jnp.int32), jnp.zeros(size, bool)))
        states = _with_leading_axes((spec.num_runs, size), clients)
        examples = self._prefetcher.shapes_of_examples(self._num_example_slots)
        rows = {name: shape_of_rows(each) for name, each in self._tables.items()}
        arguments = replicated_shapes((server, states, block, examples, rows), layout)
        axes = (0, 0, None, None, None, 0)
        self._score_own = _compile_quickly(spec.map_over_runs(score_own, axes), layout, *arguments, self._keys)
        self._program_inputs.append((self._score_own, arguments[1:]))

    def _compile_mean_personal(self, personal: Variables) -> None:
        spec, layout, seeds = self._traced.spec, self._layout, self._traced.spec.num_runs
        rounds = replicated_shapes(ShapeDtypeStruct((seeds, spec.num_clients), np.int32), layout)
        self._shares = _compile_quickly(spec.map_over_runs(scoring.trained_client_weights, (0,)), layout, rounds)
        block = _with_leading_axes((seeds, self._block), personal)
        shares = ShapeDtypeStruct((seeds, self._block), _float_dtype())
        arguments = replicated_shapes((self._mean_shapes, block, shares), layout)
        add_shares = spec.map_over_runs(scoring.add_weighted, (0, 0, 0))
        self._add_shares = _compile_quickly(add_shares, layout, *arguments, donate=(0,))


def _float_dtype() -> np.dtype:
    """The dtype of `float` in the current JAX configuration."""
    return jax.dtypes.canonicalize_dtype(float)


def _with_leading_axes(axes: tuple[int, ...], states: PyTree) -> PyTree:
    """The shapes of leaves [seeds, clients, ...] with other leading axes."""
    return jax.tree.map(lambda x: ShapeDtypeStruct((*axes, *x.shape[2:]), x.dtype), states)
