"""Plan of how a round stores the updates of its cohort, derived from the calls of its aggregator.

`plan_stack` traces the aggregator and the summaries on a stand-in for the stack, and records what they read:
* every `weighted_sum` whose weights follow from each upload alone is computed while clients train (`stream_sums`);
* leaves that are read in bfloat16 are sent and stacked in bfloat16 (`pack_for`);
* if nothing else is read, the compiler removes the stack.
If a stage of the uplink needs the updates of the whole cohort, they are stacked, and no sum is streamed.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import traverse_util

from fedjax_het import tree
from fedjax_het._internal.float64 import require_float64, run_in_required_precision
from fedjax_het.algorithm import Algorithm, Problem
from fedjax_het.engine.parallel.update_stack import pack, unpack
from fedjax_het.engine.round.problem import HIDDEN_EXAMPLE_COUNTS, MissingSlotError, SlotView
from fedjax_het.engine.round.uplink import hides_examples, is_stacked
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Broadcast, PyTree, ServerState, ServerView, Upload, Variables


class StreamedSum(NamedTuple):
    """A weighted sum that can be computed while clients train."""

    per_client: Callable[[Upload], Array]
    choose: Callable[[Upload], PyTree]  # selects the summand


UpdateSums = dict[str, list[tuple[Array, PyTree]]]
"""(sum of the weights, weighted sum) for each `StreamedSum` of a plan."""
AGGREGATOR = "aggregator"  # the key of the aggregator's sums; those of a summary have `summary_key(name)`


@dataclass
class StackPlan:
    """How an aggregator and the summaries read the updates of a round."""

    sums: dict[str, list[StreamedSum]] = field(default_factory=dict)  # by the part that requests them
    packed: set[str] = field(default_factory=set)  # paths of the leaves that are read in bfloat16
    is_stacked: bool = False  # whether updates are also read in other ways


def summary_key(name: str) -> str:
    """The key of the sums of a summary in `UpdateSums`."""
    return f"published/{name}"


def plan_stack(
    algorithm: Algorithm,
    problem: Problem,
    server: ServerState,
    received: Broadcast,
    upload: Upload,
    cohort: Array,
    num_clients: int,
) -> StackPlan:
    """Trace aggregator and summaries on stand-ins, and record how updates are read.

    Args:
        algorithm: The algorithm.
        problem: The learning problem.
        server: The state of the server; only the shapes of this and the next three arguments are used.
        received: The broadcast of the round.
        upload: One client's upload.
        cohort: The ids of the cohort.
        num_clients: The number of clients with training examples.

    Returns:
        The plan.

    Raises:
        InputError: An aggregator or a summary reads a quantity that no slot provides; or weights declared to depend on
            one upload depend on others.
    """
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)  # noqa: E731
    stacked = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*cohort.shape, *x.shape), x.dtype), upload)
    is_present = jax.ShapeDtypeStruct(cohort.shape, bool)
    shapes = (*jax.tree.map(shape, (server, received)), stacked, shape(cohort), is_present)
    plan = _trace_plan(algorithm, problem, num_clients, shapes)
    if is_stacked(algorithm.uplink):
        return StackPlan(packed=plan.packed, is_stacked=True)
    captured = _captured_arrays(plan, upload)
    # Algorithm arrays captured by a weight, such as traced hyperparameters, are identical in a second trace; arrays of
    # the view are not, and do not exist yet while clients train.
    again = _captured_arrays(_trace_plan(algorithm, problem, num_clients, shapes), upload) if captured else []
    if [id(each) for each in captured] != [id(each) for each in again]:
        raise InputError(
            "the aggregator: `per_client` of a weighted_sum is computed while clients train, from one upload alone, "
            "but it reads arrays of the view. Leave it out; the updates are then stacked."
        )
    return plan


def _captured_arrays(plan: StackPlan, upload: Upload) -> list[Array]:
    """The traced arrays that the weights of a plan's sums close over."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), upload)
    traced = [jax.make_jaxpr(one.per_client)(shapes) for sums in plan.sums.values() for one in sums]
    return [const for each in traced for const in each.consts if isinstance(const, jax.core.Tracer)]


def _trace_plan(algorithm: Algorithm, problem: Problem, num_clients: int, shapes: tuple) -> StackPlan:
    """Trace with the shapes of (server, broadcast, uploads of the cohort, its ids, whether they are present)."""
    plan = StackPlan()

    def trace(server: ServerState, received: Broadcast, uploads: Upload, cohort: Array, is_present: Array) -> None:
        without_update = uploads._replace(update={}, reports=SlotView("reports", uploads.reports))
        if hides_examples(algorithm.uplink):
            without_update = without_update._replace(num_examples=HIDDEN_EXAMPLE_COUNTS)
        paths = traverse_util.unflatten_dict({path: path for path in tree.paths(uploads.update)}, sep="/")

        def view(key: str) -> ServerView:
            plan.sums[key] = []  # the previous attempt may have stopped when it required float64
            reader = _StackReader(uploads.update, plan, plan.sums[key], lambda upload: upload.update, paths)
            return ServerView(received, without_update, cohort, is_present, num_clients, reader)

        def aggregate() -> PyTree:
            return algorithm.aggregator.update(problem, server.aggregator, view(AGGREGATOR))

        def update_summary(name: str) -> PyTree:
            own_view, key = view(summary_key(name)), summary_key(name)
            choose = lambda upload: upload.reports[name]  # noqa: E731
            reader = _StackReader(uploads.reports[name], plan, plan.sums[key], choose, None)
            return algorithm.published[name].update(received.published[name], reader, own_view)

        parts = {"the aggregator": aggregate}
        for name in algorithm.published:
            if name in uploads.reports:
                parts[f"published['{name}']"] = functools.partial(update_summary, name)
        for reader, part in parts.items():
            try:
                run_in_required_precision(part)
            except MissingSlotError as error:
                raise InputError(f"{reader} {error}") from None

    jax.eval_shape(trace, *shapes)
    return plan


def pack_for(plan: StackPlan, update: Variables) -> Variables:
    """One client's update as sent: leaves that are read in bfloat16 are packed."""
    rest, packed = tree.partition(update, plan.packed.__contains__)
    return tree.merge(rest, pack(packed)) if packed else update


def stream_sums(plan: StackPlan, upload: Upload, is_present: Array) -> UpdateSums:
    """The contribution of a client to the sums of a plan; zeros for absent clients."""

    def add(one: StreamedSum) -> tuple[Array, PyTree]:
        weight = jnp.where(is_present, one.per_client(upload), 0)
        return weight, tree.scale(weight, one.choose(upload))

    return {key: [add(one) for one in sums] for key, sums in plan.sums.items()}


@dataclass(frozen=True)
class _StackReader:
    """An `UpdateStack` that records how it is read, and returns zeros."""

    stack: PyTree
    plan: StackPlan
    recorded: list[StreamedSum]
    choose: Callable[[Upload], PyTree]
    paths: PyTree | None  # leaf paths; None for a stack of reports, which is always stored
    is_by_tensor: bool = False

    def weighted_sum(self, weights: Array, per_client: Callable[[Upload], Array] | None = None) -> PyTree:
        if per_client is None:
            return self.combine(weights)
        self.recorded.append(StreamedSum(per_client, self.choose))
        return self._zeros()

    def gram(self) -> Array:
        require_float64()
        self._record_stacked()
        leading, num_clients = self._shape_of_products()
        return jnp.zeros((*leading, num_clients, num_clients))

    def products(self, reference: PyTree) -> Array:
        require_float64()
        self._record_stacked()
        leading, num_clients = self._shape_of_products()
        return jnp.zeros((*leading, num_clients))

    def combine(self, coefficients: Array) -> PyTree:
        self._record_stacked()
        return self._zeros()

    def tensors(self) -> PyTree:
        self._record_stacked()
        return unpack(self.stack)

    def select(self, is_chosen: Callable[[str], bool]) -> "_StackReader":
        part = lambda stack: tree.partition(stack, is_chosen)[1]  # noqa: E731
        paths = None if self.paths is None else part(self.paths)
        return replace(self, stack=part(self.stack), choose=lambda upload: part(self.choose(upload)), paths=paths)

    def by_tensor(self) -> "_StackReader":
        return replace(self, is_by_tensor=True)

    def astype(self, dtype: str) -> "_StackReader":
        if dtype == "bfloat16" and self.paths is not None:
            self.plan.packed.update(jax.tree.leaves(self.paths))
        return self

    def _shape_of_products(self) -> tuple[tuple[int, ...], int]:
        leaves = jax.tree.leaves(self.stack)
        return (len(leaves),) if self.is_by_tensor else (), leaves[0].shape[0]

    def _record_stacked(self) -> None:
        if self.paths is not None and jax.tree.leaves(self.stack):
            self.plan.is_stacked = True

    def _zeros(self) -> PyTree:
        return jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), unpack(self.stack))
