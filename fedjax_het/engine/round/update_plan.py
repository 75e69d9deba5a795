"""Plan of how a round holds the updates of its cohort, made from what its aggregator calls.

`plan_stack` traces the aggregator and the summaries once, on a stand-in for the stack, and notes what they read:
* every `weighted_sum` whose weights are known from each upload alone runs while clients train (`stream_sums`);
* leaves that are read in bfloat16 are sent and stacked in bfloat16 (`pack_for`);
* where nothing else is read, nobody reads the stack, and the compiler drops it.
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
from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.parallel.update_stack import pack, unpack
from fedjax_het.engine.round.problem import MissingSlotError, SlotView
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Broadcast, PyTree, ServerState, ServerView, Upload, Variables


class StreamedSum(NamedTuple):
    """A sum that can run while clients train."""

    per_client: Callable[[Upload], Array]
    choose: Callable[[Upload], PyTree]  # what is summed


Sums = dict[str, list[tuple[Array, PyTree]]]
"""(sum of the weights, weighted sum) for each `StreamedSum` of a plan."""
AGGREGATOR = "aggregator"  # the key of the aggregator's sums; those of a summary have `summary_key(name)`


@dataclass
class StackPlan:
    """How an aggregator, and the summaries beside it, read the updates of a round."""

    sums: dict[str, list[StreamedSum]] = field(default_factory=dict)  # by the part that asks for them
    packed: set[str] = field(default_factory=set)  # paths of the leaves that are read in bfloat16
    is_stacked: bool = False  # whether updates are read in other ways, too


def summary_key(name: str) -> str:
    return f"published/{name}"


def plan_stack(
    algorithm: Algorithm,
    problem: object,
    server: ServerState,
    received: Broadcast,
    upload: Upload,
    cohort: Array,
    num_clients: int,
) -> StackPlan:
    """Trace what happens to the uploads of a round, on zeros, and note how updates are read.

    Args:
        algorithm: whose aggregator and summaries are traced.
        problem: what the aggregator is handed.
        server, received, cohort: those of the round; shapes alone count.
        upload: of one client, likewise.
        num_clients: those that have training examples.

    Raises:
        InputError: for an aggregator that reads a quantity which no slot fills, and for weights that are said to be
            known from one upload but are computed from others.
    """
    arguments = (algorithm, problem, server, received, upload, cohort, num_clients)
    plan = _trace_plan(*arguments)
    captured = _captured_arrays(plan, upload)
    # What a weight captures of the algorithm, such as a traced hyper-parameter, is the same array in another trace;
    # what it captures of the view is not, and is not there while clients train.
    again = _captured_arrays(_trace_plan(*arguments), upload) if captured else []
    if [id(each) for each in captured] != [id(each) for each in again]:
        raise InputError(
            "the aggregator: `per_client` of a weighted_sum is computed while clients train, from one upload alone, "
            "but it reads arrays of the view. Leave it out; the updates are then stacked."
        )
    return plan


def _captured_arrays(plan: StackPlan, upload: Upload) -> list[Array]:
    """What the weights of a plan's sums close over and is traced."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), upload)
    traced = [jax.make_jaxpr(one.per_client)(shapes) for sums in plan.sums.values() for one in sums]
    return [const for each in traced for const in each.consts if isinstance(const, jax.core.Tracer)]


def _trace_plan(
    algorithm: Algorithm,
    problem: object,
    server: ServerState,
    received: Broadcast,
    upload: Upload,
    cohort: Array,
    num_clients: int,
) -> StackPlan:
    plan = StackPlan()

    def trace(server: ServerState, received: Broadcast, uploads: Upload, cohort: Array, is_present: Array) -> None:
        without_update = uploads._replace(update={}, reports=SlotView("reports", uploads.reports))
        paths = traverse_util.unflatten_dict({path: path for path in tree.paths(uploads.update)}, sep="/")

        def view(key: str) -> ServerView:
            plan.sums[key] = []  # anew: an attempt without float64 ends where float64 is asked for
            reader = _StackReader(uploads.update, plan, plan.sums[key], lambda upload: upload.update, paths)
            return ServerView(received, without_update, cohort, is_present, num_clients, reader)

        def aggregate() -> PyTree:
            return algorithm.aggregator.update(problem, server.aggregator, view(AGGREGATOR))

        def summarise(name: str) -> PyTree:
            seen, key = view(summary_key(name)), summary_key(name)
            choose = lambda upload: upload.reports[name]  # noqa: E731
            reader = _StackReader(uploads.reports[name], plan, plan.sums[key], choose, None)
            return algorithm.published[name].update(received.published[name], reader, seen)

        asked = {"the aggregator": aggregate}
        for name in algorithm.published:
            if name in uploads.reports:
                asked[f"published['{name}']"] = functools.partial(summarise, name)
        for who, part in asked.items():
            try:
                run_in_required_precision(part)
            except MissingSlotError as unfilled:
                raise InputError(f"{who} {unfilled}") from None

    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)  # noqa: E731
    stacked = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*cohort.shape, *x.shape), x.dtype), upload)
    is_present = jax.ShapeDtypeStruct(cohort.shape, bool)
    jax.eval_shape(trace, *jax.tree.map(shape, (server, received)), stacked, shape(cohort), is_present)
    return plan


def pack_for(plan: StackPlan, update: Variables) -> Variables:
    """One client's update as it is sent: in bfloat16 the leaves that are read so."""
    rest, packed = tree.partition(update, plan.packed.__contains__)
    return tree.merge(rest, pack(packed)) if packed else update


def stream_sums(plan: StackPlan, upload: Upload, is_present: Array) -> Sums:
    """What one client adds to the sums of a plan; its upload is zeros unless `is_present`."""

    def add(one: StreamedSum) -> tuple[Array, PyTree]:
        weight = jnp.where(is_present, one.per_client(upload), 0)
        return weight, tree.scale(weight, one.choose(upload))

    return {key: [add(one) for one in sums] for key, sums in plan.sums.items()}


@dataclass(frozen=True)
class _StackReader:
    """An `UpdateStack` that notes how it is read, and answers with zeros."""

    stack: PyTree
    plan: StackPlan
    noted: list[StreamedSum]
    choose: Callable[[Upload], PyTree]
    paths: PyTree | None  # of the leaves; None for a stack of reports, which is kept in any case

    def weighted_sum(self, weights: Array, per_client: Callable[[Upload], Array] | None = None) -> PyTree:
        if per_client is None:
            return self.combine(weights)
        self.noted.append(StreamedSum(per_client, self.choose))
        return self._zeros()

    def gram(self) -> Array:
        require_float64()
        self._note_stacked()
        num_clients = jax.tree.leaves(self.stack)[0].shape[0]
        return jnp.zeros((num_clients, num_clients))

    def products(self, reference: PyTree) -> Array:
        require_float64()
        self._note_stacked()
        return jnp.zeros(jax.tree.leaves(self.stack)[0].shape[0])

    def combine(self, coefficients: Array) -> PyTree:
        self._note_stacked()
        return self._zeros()

    def tensors(self) -> PyTree:
        self._note_stacked()
        return unpack(self.stack)

    def select(self, is_chosen: Callable[[str], bool]) -> "_StackReader":
        return self._part(lambda stack: tree.partition(stack, is_chosen)[1])

    def by_tensor(self) -> PyTree:
        leaves, structure = jax.tree.flatten(self.stack)
        parts = [self._part(lambda stack, i=i: jax.tree.leaves(stack)[i]) for i in range(len(leaves))]
        return structure.unflatten(parts)

    def astype(self, dtype: str) -> "_StackReader":
        if dtype == "bfloat16" and self.paths is not None:
            self.plan.packed.update(jax.tree.leaves(self.paths))
        return self

    def _part(self, part: Callable[[PyTree], PyTree]) -> "_StackReader":
        paths = None if self.paths is None else part(self.paths)
        return replace(self, stack=part(self.stack), choose=lambda upload: part(self.choose(upload)), paths=paths)

    def _note_stacked(self) -> None:
        if self.paths is not None and jax.tree.leaves(self.stack):
            self.plan.is_stacked = True

    def _zeros(self) -> PyTree:
        return jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), unpack(self.stack))
