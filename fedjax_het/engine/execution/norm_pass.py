"""The pass over the training examples of all clients that gives static batch norms their statistics."""

from collections.abc import Mapping
from concurrent.futures import Future

import jax
import numpy as np

from fedjax_het import tree
from fedjax_het.engine.evaluation.evaluate import BATCH, evaluated_model
from fedjax_het.engine.evaluation.norm_statistics import Moments, add_clients, mean_moments, no_moments
from fedjax_het.engine.execution.loading import select_rows
from fedjax_het.engine.execution.programs import RunPrograms
from fedjax_het.engine.parallel.compilation import Program, replicated_shapes
from fedjax_het.engine.parallel.runs import Executable
from fedjax_het.placeholders import HIDDEN_TEST_ROWS
from fedjax_het.types import Array, ClientData, Examples, PyTree, Rows, ServerState, Variables

_NAME = "statistics of norms"


class NormPass:
    """The pass before an evaluation, over as many clients at a time as a round has; see `norm_statistics`.

    Attributes:
        zero: Statistics of zeros, NumPy arrays [runs, ...]; {} without static norms.
    """

    def __init__(self, run: RunPrograms):
        self._run, self._spec, self._size = run, run.traced.spec, min(run.slots, run.traced.spec.num_clients)
        problem, data = run.traced.round.problem, self._spec.federation.data
        start = jax.eval_shape(lambda: no_moments(problem, data))
        self._start = jax.tree.map(lambda x: np.zeros((self._spec.num_runs, *x.shape), x.dtype), start)
        self.zero: Variables = self._start.sums
        counts = self._spec.federation.largest_counts("train")
        self._num_slots = 1 + sum(sorted(counts.tolist())[-self._size :])

    def programs(self, mean_personal: Variables) -> dict[str, tuple[Program, PyTree]]:
        """The program by name, as in `Evaluator.programs`, given the mean of personal leaves or its shapes."""
        if not self.zero:
            return {}
        index = self._spec.federation.data.train.index
        rows = Rows(np.zeros((self._size, index.shape[1]), np.int32), np.zeros(self._size, np.int32))
        examples = self._run.loader.shapes_of_examples(self._num_slots)
        shapes = replicated_shapes((mean_personal, self._start, examples, rows), self._run.traced.layout)
        arguments, axes = (self._run.hyper_parameters, self._run.state.server, *shapes), (0, 0, 0, 0, None, None)
        program = self._run.build(_NAME, self._add, axes, arguments, donate=(3,), is_quick=True)
        return {_NAME: (program, (examples, rows) if self._run.loader.is_streaming else rows)}

    def add_zero(self, mean_personal: Variables) -> Variables:
        """Add statistics of zeros."""
        return tree.merge(mean_personal, self.zero) if self.zero else mean_personal

    def add(
        self, compiled: Mapping[str, Future[Executable]], server: ServerState, mean_personal: Variables, round: int
    ) -> Variables:
        """Add the statistics of the evaluated model on the data of a round, NumPy arrays [runs, ...]."""
        if not self.zero:
            return mean_personal
        train, total = self._spec.federation.in_round(round).data.train, self._start
        for first in range(0, self._spec.num_clients, self._size):
            ids = first + np.arange(self._size)
            is_client = ids < self._spec.num_clients
            rows = select_rows(train, np.where(is_client, ids, 0), is_client)
            examples, (rows,) = self._run.loader.load_examples((rows,), self._num_slots)
            jax.block_until_ready(total)  # at most two pieces are on the device
            add = compiled[_NAME].result()
            total = add(self._run.hyper_parameters, server, mean_personal, total, examples, rows)
        statistics = jax.vmap(mean_moments)(jax.tree.map(np.asarray, total))
        return tree.merge(mean_personal, jax.tree.map(np.asarray, statistics))

    def _add(
        self,
        hyper_parameters: dict[str, Array],
        server: ServerState,
        mean_personal: Variables,
        total: Moments,
        examples: Examples,
        rows: Rows,
    ) -> Moments:
        round = self._run.traced.with_hyper_parameters(hyper_parameters).round
        variables = evaluated_model(round.algorithm, round.problem, server, mean_personal)
        assert isinstance(variables, dict)
        data = ClientData(examples, rows, rows, HIDDEN_TEST_ROWS)
        return add_clients(round.problem, variables, server.round, data, BATCH, total)
