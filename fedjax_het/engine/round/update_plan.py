"""Storage of the updates of a cohort in a round, as the aggregator and the summaries declare.

* Sums whose weights follow from each upload alone are computed while clients train (`stream_sums`).
* Leaves that the aggregator packs are sent and stacked in bfloat16 (`pack_for`).
* If nothing else is read, the compiler removes the stack.
If a stage of the uplink needs the updates of the whole cohort, they are stacked, and no sum is streamed.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Algorithm, Summary
from fedjax_het.engine.parallel.update_stack import pack
from fedjax_het.engine.round import uplink
from fedjax_het.errors import InputError
from fedjax_het.placeholders import HIDDEN_EXAMPLE_COUNTS, MissingSlotError
from fedjax_het.problem import SlotView
from fedjax_het.types import Array, PyTree, Upload, Variables, WeightedSum

AGGREGATOR = "aggregator"  # the key of the aggregator's sums; those of a summary have the key of `summary_key`
UpdateSums = Mapping[str, tuple[tuple[Array, PyTree], ...]]
"""(sum of the weights, weighted sum) for each streamed sum of a part of an algorithm, by its key.

With several models, the sums of the aggregator are [models, ...]."""


class Reader(NamedTuple):
    """A part of an algorithm that reads the updates."""

    name: str  # in messages
    part: Aggregator | Summary
    report: str = ""  # the report that a summary reads


def summary_key(name: str) -> str:
    """The key of the sums of a summary in `UpdateSums`."""
    return f"published/{name}"


def find_readers(algorithm: Algorithm) -> dict[str, Reader]:
    """The parts of an algorithm that read the updates after training, by the key of their sums."""
    summaries = {name: summary for name, summary in algorithm.published.items() if name in algorithm.reports}
    return {AGGREGATOR: Reader("the aggregator", algorithm.aggregator)} | {
        summary_key(name): Reader(f"published['{name}']", summary, name) for name, summary in summaries.items()
    }


def streamed_sums(part: Aggregator | Summary) -> dict[WeightedSum, Callable[[Upload], Array]]:
    """The declared sums that can be computed while clients train, with the weight of each upload."""
    return {declared: declared.per_client for declared in part.sums if declared.per_client is not None}


def is_stacked(algorithm: Algorithm) -> bool:
    """Whether a round stores the update of every client of the cohort."""
    parts = [reader.part for reader in find_readers(algorithm).values()]
    reads_stack = any(part.reads != "sums" or len(streamed_sums(part)) < len(part.sums) for part in parts)
    return not _streams(algorithm) or reads_stack


def _streams(algorithm: Algorithm) -> bool:
    """Whether sums may be computed while clients train: what a client adds is known when it has finished."""
    is_regrouped = algorithm.models is not None and algorithm.models.regroup is not None
    return not (uplink.is_stacked(algorithm.uplink) or is_regrouped)


def pack_for(aggregator: Aggregator, update: Variables) -> Variables:
    """One client's update, or those of a cohort, as sent: the leaves that the aggregator packs in bfloat16."""
    if aggregator.packed is None:
        return update
    rest, packed = tree.partition(update, aggregator.packed)
    return tree.merge(rest, pack(packed))


def stream_sums(algorithm: Algorithm, upload: Upload, is_present: Array) -> UpdateSums:
    """The contribution of a client to the streamed sums; zeros for absent clients.

    Raises:
        InputError: A weight reads a quantity that no slot provides, or that is hidden from the server.
    """
    if not _streams(algorithm):
        return {}
    known = upload._replace(reports=SlotView("reports", upload.reports))
    if uplink.hides_examples(algorithm.uplink):
        known = known._replace(num_examples=HIDDEN_EXAMPLE_COUNTS)

    def add(
        part: Aggregator | Summary, declared: WeightedSum, per_client: Callable[[Upload], Array], report: str
    ) -> tuple[Array, PyTree]:
        weight = jnp.where(is_present, per_client(known), 0)
        summand = upload.update if declared.source == "updates" else upload.reports[report]
        if declared.is_chosen is not None:
            summand = tree.partition(summand, declared.is_chosen)[1]
        if algorithm.models is None or part is not algorithm.aggregator:
            return weight, tree.scale(weight, summand)
        weights = weight * jax.nn.one_hot(upload.model, algorithm.models.number)
        return weights, jax.vmap(tree.scale, (0, None))(weights, summand)

    sums = {}
    for key, (name, part, report) in find_readers(algorithm).items():
        try:
            sums[key] = tuple(add(part, *streamed, report) for streamed in streamed_sums(part).items())
        except MissingSlotError as error:
            raise InputError(f"{name} {error}") from None
    return sums
