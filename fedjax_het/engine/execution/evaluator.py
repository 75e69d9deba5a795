"""Evaluation of a run on all held-out examples, in pieces that fit on the device."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het.data.phases import find_phase
from fedjax_het.engine.evaluation import scoring
from fedjax_het.engine.evaluation.evaluate import (
    BATCH,
    Evaluation,
    Predictions,
    collect_scores,
    cut_into_pieces,
    evaluated_model,
    has_own_models,
    held_out_batches,
)
from fedjax_het.engine.evaluation.personal_means import add_weighted, mean_personal_variables, trained_client_weights
from fedjax_het.engine.evaluation.predictions import add_metrics
from fedjax_het.engine.evaluation.scoring import Batches, HeldOut
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.loading import select_rows
from fedjax_het.engine.execution.norm_pass import NormPass
from fedjax_het.engine.execution.personal_tables import TRAINING, PersonalTables, Tables
from fedjax_het.engine.execution.programs import RunPrograms
from fedjax_het.engine.execution.run_spec import ALL_ON_DEVICE
from fedjax_het.engine.parallel.compilation import Program, replicated_shapes
from fedjax_het.engine.parallel.runs import Executable
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.engine.storage.client_store import ClientStore
from fedjax_het.placeholders import HIDDEN_TEST_ROWS
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


class Evaluator:
    """The evaluation of a run.

    With everything on the device, held-out batches and clients are scored by one program each. Otherwise a piece is
    half of a round's examples, or a block of clients; a piece is loaded while the previous one is scored. The same
    functions are applied to the same batches and blocks in the same order, so results are bitwise equal.
    """

    def __init__(self, run: RunPrograms):
        """Arrange the pieces; nothing is compiled."""
        self._run, self._traced, self._layout, self._loader = run, run.traced, run.traced.layout, run.loader
        self._spec, self._block = run.traced.spec, run.slots  # clients at a time
        self._num_blocks = -(-self._spec.num_clients // self._block)
        self._held, self._groups = held_out_batches(self._spec.federation, BATCH)
        self._num_segments = sum(size for _, size in self._groups) + 1
        # {name: (entries of the held-out batches, pieces of these)}; streamed pieces are half of a round's examples
        self._pieces = {"evaluation": (range(len(self._held)), [self._held])}
        if self._loader.is_streaming:
            max_size = self._spec.max_examples() // 2
            self._pieces = {
                f"evaluation {number}": ([number], cut_into_pieces(batches, max_size, self._num_segments - 1))
                for number, batches in enumerate(self._held)
            }
        self._is_whole = run.offload == ALL_ON_DEVICE
        algorithm, self._norms = run.traced.round.algorithm, NormPass(run)
        self._tables = PersonalTables(self._spec, scoring.has_rule_for_own_models(algorithm) or bool(self._norms.zero))
        self._num_slots = self._tables.count_slots(self._num_blocks, self._block)
        self._client_groups = run.traced.round.problem.model.groups
        self._has_personal_leaves = bool(jax.tree.leaves(run.state.clients.personal))
        self._has_own_models = has_own_models(run.state.clients, algorithm)

    def begin_compilation(self, exchange: list[Executable], keys: Key) -> None:
        """Begin to compile the programs, given those of `RunPrograms.exchange` and the key of each run."""
        self._gather, self._keys = exchange[:1], keys
        self._compiled = {name: program.begin_compilation() for name, (program, _) in self.programs().items()}

    def __call__(self, state: State) -> Evaluation:
        """Evaluate a state; the results are NumPy arrays."""
        server, totals, running = state.server, self._zero_totals, ()
        predicted: dict[int, list[np.ndarray]] = {number: [] for number in range(len(self._held))}
        mean_personal = self._mean_personal(state.clients) if self._has_personal_leaves else {}
        hyper_parameters, round = self._run.hyper_parameters, int(np.asarray(server.round)[0])
        last = max(round - 1, 0)
        mean_personal = self._norms.add(self._compiled, server, mean_personal, last)
        for name, (numbers, pieces) in self._pieces.items():
            for held in pieces:
                piece = self._load_piece(held)
                jax.block_until_ready(running)  # at most two pieces are on the device
                score = self._compiled[name].result()
                totals, values = running = score(hyper_parameters, server, mean_personal, totals, *piece)
                for number, value in zip(numbers, values, strict=False):
                    predicted[number].append(np.asarray(value))
        spec, predictions = self._spec, None
        own, own_predicted, versions = {}, {}, None
        if self._has_own_models:
            own, own_predicted = self._score_personal(state, self._tables.select(last))
            versions = self._score_versions(state, last)
        evaluation = collect_scores(self._groups, np.asarray(totals), own, spec.federation, round, versions)
        if spec.metrics:
            pieces = [np.concatenate(parts, axis=1) for parts in predicted.values()]
            held = tuple(part[:, : len(batches.index)] for part, batches in zip(pieces, self._held, strict=True))
            predictions = Predictions(held, own_predicted)
        evaluation = add_metrics(evaluation, predictions, spec.metrics, spec.federation, spec.personal_on_test, last)
        if not (models := self._traced.round.algorithm.models) or models.measure is None:
            return evaluation
        return evaluation._replace(models=jax.tree.map(np.asarray, jax.vmap(models.measure)(server.published)))

    @property
    def extra_bytes(self) -> int:
        """Peak bytes per device beyond the data of rounds; two pieces replace a round's examples."""
        copies = 1 if self._is_whole else 2
        sizes = [
            cost.temporary_bytes(self._compiled[name].result()) + copies * tree.num_bytes(loaded)
            for name, (_, loaded) in self.programs().items()
        ]
        return max(sizes) - (tree.num_bytes(self._loader.shapes()) if self._loader.is_streaming else 0)

    # ---- held-out examples -------------------------------------------------------------------------------------------
    def _load_piece(self, held: HeldOut) -> tuple[Examples, HeldOut]:
        tables = tuple(
            Rows(x.index.reshape(-1, x.index.shape[-1]), np.full(x.count.size, x.index.shape[-1])) for x in held
        )
        examples, rows = self._loader.load_examples(tables, 1 + sum(x.index.size for x in held))
        return examples, tuple(
            Batches(own.index.reshape(x.index.shape), x.count, x.segment) for own, x in zip(rows, held, strict=True)
        )

    # ---- personal models ---------------------------------------------------------------------------------------------
    def _score_versions(self, state: State, round: int) -> np.ndarray:
        """Sums of the personal models over the test examples of each version of their client's data."""
        totals = np.zeros((self._spec.num_runs, self._tables.num_versions, self._zero_totals.shape[-1]))
        for rows, own in self._tables.versions(round):
            totals[:, rows] = self._score_personal(state, own)[0]["personal"]
        return totals

    def _score_personal(self, state: State, tables: Tables) -> tuple[dict[str, np.ndarray], dict[str, HostArray]]:
        """(Sums, predictions) of personal models; no predictions without requested metrics."""
        blocks, parts, running = np.arange(self._num_blocks)[:, None], [], []
        for numbers in [blocks] if self._is_whole else np.split(blocks, self._num_blocks):
            piece = self._load_blocks(state.clients, numbers, tables)
            parts += jax.tree.map(np.asarray, running)  # at most two pieces are on the device
            score = self._compiled["personal models"].result()
            running = [score(self._run.hyper_parameters, state.server, *piece, self._keys)]
        parts += jax.tree.map(np.asarray, running)
        joined = jax.tree.map(lambda *pieces: np.concatenate(pieces, axis=1)[:, : self._spec.num_clients], *parts)
        return {name: sums for name, (sums, _) in joined.items()}, {name: x for name, (_, x) in joined.items()}

    def _mean_personal(self, clients: Clients) -> Variables:
        """`mean_personal_variables`; blocks without trained clients, which add zeros, are skipped."""
        program = self._compiled["mean of personal leaves"].result()
        if not isinstance(clients, ClientStore):
            return program(clients)
        shares = np.stack([trained_client_weights(rounds, self._client_groups) for rounds in clients.rounds])
        ids, is_client = self._client_ids(np.arange(self._num_blocks)[:, None])
        shares, total = shares[..., ids] * is_client.astype(shares.dtype), self._zero_mean  # [runs, ..., blocks, block]
        for number in np.unique(np.nonzero(shares)[-2]).tolist():
            personal = self._states_of(clients, ids[number]).personal
            total = program(jax.block_until_ready(total), personal, shares[..., number, :])
        return total

    def _load_blocks(self, clients: Clients, numbers: np.ndarray, tables: Tables) -> tuple[PyTree, ...]:
        """The clients of several blocks: (states, examples, index tables, blocks, positions of clients in these)."""
        blocks = Cohort(*self._client_ids(numbers))
        places, num_slots = blocks.ids, 1
        if not self._is_whole:
            is_own = self._tables.has_row_per_client
            tables = {
                name: select_rows(rows, blocks.ids[0], blocks.is_here[0]) if is_own(rows) else rows
                for name, rows in tables.items()
            }
            places, num_slots = np.arange(self._block, dtype=np.int32)[None], self._num_slots
            clients = self._states_of(clients, blocks.ids[0])
        examples, loaded = self._loader.load_examples(tuple(tables.values()), num_slots)
        return clients, examples, dict(zip(tables, loaded, strict=True)), blocks, places

    def _states_of(self, clients: Clients, ids: HostArray) -> ClientState:
        ids = np.broadcast_to(ids, (self._spec.num_runs, len(ids)))
        if isinstance(clients, ClientStore):
            return clients.take(ids)
        return self._gather[0](clients, ids) if self._gather else clients

    def _client_ids(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(Ids of blocks of clients, whether each is a client rather than padding.)"""
        ids, num_clients = number * self._block + np.arange(self._block), self._spec.num_clients
        return np.minimum(ids, num_clients - 1).astype(np.int32), ids < num_clients

    # ---- programs ----------------------------------------------------------------------------------------------------
    @property
    def _group_axes(self) -> tuple[int, ...]:
        return (self._client_groups.size,) if self._client_groups else ()

    @property
    def _zero_totals(self) -> np.ndarray:
        num_scores = len(scoring.score_names(self._spec.federation.examples.labels))
        return np.zeros((self._spec.num_runs, self._num_segments, num_scores), jax.dtypes.canonicalize_dtype(float))

    @property
    def _zero_mean(self) -> Variables:
        make = lambda x: np.zeros((x.shape[0], *self._group_axes, *x.shape[2:]), x.dtype)  # noqa: E731
        return jax.tree.map(make, self._run.state.clients.personal)

    def programs(self) -> dict[str, tuple[Program, PyTree]]:
        """{name: (program, shapes of the arguments that are loaded for it)}."""
        return self._score_programs() | self._personal_programs() | self._norms.programs(self._zero_mean)

    def _score_programs(self) -> dict[str, tuple[Program, PyTree]]:
        built = {}

        def score(hyper_parameters, server, mean_personal, totals, examples, held):
            round = self._traced.with_hyper_parameters(hyper_parameters).round
            variables = evaluated_model(round.algorithm, round.problem, server, mean_personal)
            predicts = bool(self._spec.metrics)
            return scoring.add_batches(round.problem, variables, server.round, examples, totals, held, predicts)

        for name, (_, (held, *_)) in self._pieces.items():
            loaded = self._loader.shapes_of_examples(1 + sum(batches.index.size for batches in held)), held
            zeros = self._norms.add_zero(self._zero_mean), self._zero_totals
            shapes = replicated_shapes((*zeros, *loaded), self._layout)
            arguments = self._run.hyper_parameters, self._run.state.server, *shapes
            axes = 0, 0, 0, 0, None, None
            program = self._run.build(name, score, axes, arguments, donate=(3,), is_quick=True)
            built[name] = program, loaded if self._loader.is_streaming else loaded[1]
        return built

    def _personal_programs(self) -> dict[str, tuple[Program, PyTree]]:
        run, layout, built = self._run, self._layout, {}
        if self._has_personal_leaves:
            name, personal, loaded = "mean of personal leaves", run.clients.personal, ()
            if run.is_stored:
                shares = np.zeros((self._spec.num_runs, *self._group_axes, self._block), self._zero_totals.dtype)
                arguments, loaded = replicated_shapes((self._zero_mean, personal, shares), layout), personal
                program = run.build(name, add_weighted, (0, 0, 0), arguments, donate=(0,), is_quick=True)
            else:
                options = {"num_clients": self._spec.num_clients, "layout": layout, "block_size": self._block}
                mean = partial(mean_personal_variables, groups=self._client_groups, **options)
                program = run.build(name, mean, (0,), (run.state.clients,), is_quick=True)
            built[name] = program, loaded
        if self._has_own_models:
            size, num_blocks = (self._spec.num_clients, self._num_blocks) if self._is_whole else (self._block, 1)
            rows = {
                name: tree.take(rows, np.zeros(size, int) if self._tables.has_row_per_client(rows) else slice(1))
                for name, rows in self._tables.select(0).items()
            }
            examples = self._loader.shapes_of_examples(self._num_slots)
            ids = np.zeros((num_blocks, self._block), np.int32)
            shapes = replicated_shapes((examples, rows, Cohort(ids, ids.astype(bool)), ids), layout)
            clients = run.state.clients if self._is_whole else run.clients
            arguments = run.hyper_parameters, run.state.server, clients, *shapes, run.keys
            axes = 0, 0, 0, None, None, None, None, 0
            program = run.build("personal models", self._score_own, axes, arguments, is_quick=True)
            loaded = () if self._is_whole else (clients, examples if self._loader.is_streaming else ())
            built["personal models"] = program, (rows, loaded)
        return built

    def _score_own(
        self,
        hyper_parameters: dict[str, Array],
        server: ServerState,
        clients: ClientState,
        examples: Examples,
        tables: Tables,
        blocks: Cohort,
        places: Array,
        key: Key,
    ) -> dict[str, tuple[Array, Array | None]]:
        """Score the personal models of several blocks; leaves [blocks * block, ...].

        `places`: the positions of the clients in `clients` and in tables with a row per client.
        """
        round = self._traced.with_hyper_parameters(hyper_parameters).round
        server, phases = server._replace(shared=round.problem.evaluated(server)), self._spec.federation.phases
        phase = find_phase(phases, jnp.maximum(server.round - 1, 0))
        options = {"with_predictions": bool(self._spec.metrics), "phase": phase}
        no_rows = Rows(np.zeros((self._block, 1), np.int32), np.zeros(self._block, np.int32))

        def score_block(piece: tuple[Cohort, Array]) -> dict[str, tuple[Array, Array | None]]:
            block, places = piece
            is_block = len(clients.rounds) == self._block  # in the order of the block
            states = clients if is_block else self._layout.take(clients, places)
            rows = {name: scoring.rows_of_block(table, block._replace(ids=places)) for name, table in tables.items()}
            train, valid = (rows.pop(name, no_rows) for name in TRAINING)
            arguments = states, ClientData(examples, train, valid, HIDDEN_TEST_ROWS), rows, block, key
            return scoring.score_own_models(
                round.algorithm, round.problem, self._layout, BATCH, server, *arguments, **options
            )

        scored = jax.lax.map(score_block, (blocks, places))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), scored)
