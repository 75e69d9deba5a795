"""Evaluation of the server's model on all held-out examples, and of personal models."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm, OutputMixture
from fedjax_het.data.federation import Federation
from fedjax_het.engine.evaluation import scoring
from fedjax_het.engine.evaluation.phase_metrics import PhaseMetrics, measure_phases
from fedjax_het.engine.evaluation.scoring import Batches, HeldOut
from fedjax_het.engine.evaluation.segmentation_metrics import OVERLAP_METRICS
from fedjax_het.errors import InputError
from fedjax_het.labels import are_tokens
from fedjax_het.models import select_network
from fedjax_het.problem import Problem
from fedjax_het.types import ClientState, HostArray, Rows, ServerState, Variables

BATCH = 256
_MIN_PADDING_SAVED = 4096  # padding slots; saving fewer is not worth the compilation of another program


class Metrics(NamedTuple):
    """Means over examples (over positions of sequences and known tags), 0 if empty; C-index and metrics of predictions:
    NaN if undefined."""

    loss: HostArray  # the default one of the kind of labels, see `fedjax_het.labels`
    accuracy: HostArray | None  # None for numbers
    num_examples: HostArray
    overlap: dict[str, HostArray] | None = None  # for masks: "dice", "iou", "dice_foreground", "iou_foreground"
    requested: dict[str, HostArray] | None = None  # by name, see `metrics.METRICS`
    pooled: dict[str, HostArray] | None = None  # of the examples of all clients together, for labels without classes
    token_loss: HostArray | None = None  # for tokens: the loss, whose exponential is the perplexity
    num_defined: HostArray | None = None  # for survival times: the number of examples with defined C-index
    model: HostArray | None = None  # for personal models: the number of the server's model, if there are several
    rand_index: HostArray | None = None  # adjusted, of these numbers and the domains of clients, if each has one


class Evaluation(NamedTuple):
    """The results of an evaluation.

    Leaves are [clients] for clients, valid, personal, personal_test and personal_valid, [newcomers] for newcomers, and
    [] for test and each unseen domain.
    """

    test: Metrics | None  # the server's model on the common test set
    clients: Metrics  # the server's model on each client's test examples
    personal: Metrics | None  # personal models on their client's test examples; None if nothing is personal
    newcomers: Metrics | None  # the server's model on clients that never trained
    unseen: dict[str, Metrics]  # the server's model on domains that no client has
    valid: Metrics | None = None  # the server's model on each client's validation examples, if any
    personal_test: Metrics | None = None  # personal models on the common test set, if requested
    personal_valid: Metrics | None = None  # personal models on their client's validation examples, if any
    models: dict[str, HostArray] | None = None  # how the server chooses them, see `SharedModels.measure`
    phases: PhaseMetrics | None = None  # on the data of every phase, if they change; all others: that of the last round


class Predictions(NamedTuple):
    """The predictions for all scored examples, see `scoring.add_batches` and `scoring.score_own_models`."""

    held: tuple[HostArray, ...]  # for each entry of the held-out batches, [steps, batches, size, ...]
    own: dict[str, HostArray]  # {field of Evaluation: [clients, capacity, ...]}


BY_VERSION = frozenset({"clients", "valid"})
"""The groups with one segment per version of a client's data, if data change with the round."""
Groups = list[tuple[str, int]]
"""The groups of segments in order, with their numbers of segments: ("clients", 20), ("test", 1), ..."""


def held_out_batches(federation: Federation, batch_size: int) -> tuple[HeldOut, Groups]:
    """Arrange all held-out examples in batches of a single client, split and version of the client's data.

    Args:
        federation: The federation.
        batch_size: The maximum number of examples per batch.

    Returns:
        (The batches, the groups of their segments.)
    """
    phases = federation.phases
    groups = [("clients", (phases or federation.data).test)]
    if federation.newcomers is not None:
        groups.append(("newcomers", federation.newcomers.test))
    if federation.test is not None:
        groups.append(("test", _make_table(federation.test)))
    if np.any(federation.largest_counts("valid")):
        groups.append(("valid", (phases or federation.data).valid))
    groups += [(f"unseen/{name}", _make_table(rows)) for name, rows in federation.unseen.items()]
    positions = np.concatenate([np.asarray(rows.index)[rows.is_entry] for _, rows in groups])
    counts = np.concatenate([rows.count for _, rows in groups])
    return _make_batches(positions, counts, batch_size), [(name, len(rows.count)) for name, rows in groups]


def _make_batches(positions: np.ndarray, counts: np.ndarray, batch_size: int) -> HeldOut:
    """Build batches from the positions of all examples, ordered by segment, and the segment sizes."""
    padding_segment, sizes = len(counts), Rows(positions, counts).even_batch_size(batch_size)
    num_batches = -(-counts // batch_size)
    segment = np.repeat(np.arange(padding_segment), num_batches)
    number = np.arange(len(segment)) - np.repeat(np.cumsum(num_batches) - num_batches, num_batches)
    skipped = number * sizes[segment]
    count = np.minimum(sizes[segment], counts[segment] - skipped)
    begin = (np.cumsum(counts) - counts)[segment] + skipped
    held, chosen = [], _padded_sizes(count)
    for smaller, size in zip([0, *chosen], chosen, strict=False):
        fits = (smaller < count) & (count <= size)
        places = np.arange(size)
        index = np.where(places < count[fits, None], begin[fits, None] + places, 0)
        batches_per_step = max(1, min(batch_size // size, int(np.count_nonzero(fits))))
        parts = Batches(positions[index], count[fits], segment[fits])
        held.append(_group_into_steps(parts, batches_per_step, padding_segment))
    return tuple(held) or (Batches(np.zeros((1, 1, 1), np.int32), *np.array([[[0]], [[padding_segment]]], np.int32)),)


def _padded_sizes(counts: np.ndarray) -> list[int]:
    """The one or two sizes to which batches with these numbers of examples are padded; each is compiled separately.

    Two sizes are used if they save a quarter of all slots, and enough slots to justify the compilation, as for many
    small clients and a large test set.
    """
    candidates, num = np.unique(counts, return_counts=True)
    if not len(candidates):
        return []
    smaller = np.cumsum(num)
    places = smaller * candidates + (smaller[-1] - smaller) * candidates[-1]
    best = int(np.argmin(places))
    is_padding_saved = 4 * places[best] <= 3 * places[-1] and places[-1] - places[best] >= _MIN_PADDING_SAVED
    return [int(candidates[best]), int(candidates[-1])] if is_padding_saved else [int(candidates[-1])]


def _group_into_steps(batches: Batches, batches_per_step: int, padding_segment: int) -> Batches:
    missing = -len(batches.count) % batches_per_step

    def cut(x: HostArray, fill: int) -> np.ndarray:
        padded = np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1), constant_values=fill)
        return padded.reshape(-1, batches_per_step, *x.shape[1:]).astype(np.int32)

    return Batches(cut(batches.index, 0), cut(batches.count, 0), cut(batches.segment, padding_segment))


def cut_into_pieces(batches: Batches, max_size: int, padding_segment: int) -> list[HeldOut]:
    """Cut batches into pieces of equal shape with at most `max_size` examples, but at least two steps each."""
    num_steps, *step = batches.index.shape
    steps, pieces = min(max(2, max_size // math.prod(step)), num_steps), []
    for first in range(0, num_steps, steps):
        part = jax.tree.map(lambda x, first=first: x[first : first + steps], batches)
        missing = steps - len(part.count)
        index, count, segment = (np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) for x in part)
        segment[steps - missing :] = padding_segment
        pieces.append((Batches(index, count, segment),))
    return pieces


def personal_rows(federation: Federation, personal_on_test: bool) -> dict[str, Rows]:
    """The index tables on which personal models are scored.

    Args:
        federation: The federation.
        personal_on_test: Whether they are also scored on the common test set.

    Returns:
        {field of Evaluation: table with one row per client, or a single row for all clients}.
    """
    tables = {"personal": federation.data.test}
    if personal_on_test:
        if federation.test is None:
            raise InputError("personal_on_test: there is no common test set.")
        tables["personal_test"] = _make_table(federation.test)
    if np.any(federation.largest_counts("valid")):
        tables["personal_valid"] = federation.data.valid
    return tables


def _make_table(rows: Rows) -> Rows:
    return Rows(np.asarray(rows.index)[None], np.asarray(rows.count)[None])


def evaluated_model(
    algorithm: Algorithm, problem: Problem, server: ServerState, mean_personal: Variables
) -> Variables | OutputMixture:
    """The server's model for held-out examples; of several models, the weighted mean of their logits."""
    if groups := problem.model.groups:
        fixed = problem.whole_model(server)
        means = [tree.take(mean_personal, number) | select_network(number) for number in range(groups.size)]
        weights = tuple(jnp.full(groups.size, 1 / groups.size))
        return OutputMixture(tuple(tree.merge(fixed, mean) for mean in means), weights)
    variables = tree.merge(problem.whole_model(server), mean_personal)
    if algorithm.models is None:
        return variables
    fixed, shared = tree.partition_like(variables, problem.evaluated(server))
    number, weigh = algorithm.models.number, algorithm.models.weigh
    weights = weigh(server.published) if weigh else jnp.full(number, 1 / number)
    models = tuple(tree.merge(fixed, tree.take(shared, index)) for index in range(number))
    return OutputMixture(models, tuple(weights))


def evaluate_model(
    problem: Problem, variables: Variables, federation: Federation, round: int = 0, batch_size: int = BATCH
) -> Evaluation:
    """Evaluate a single model on all held-out examples.

    Args:
        problem: The learning problem.
        variables: All variables of the model.
        federation: The clients and their data.
        round: The number of completed rounds, which networks may read.
        batch_size: The maximum number of examples per batch.

    Returns:
        The evaluation, without personal models.
    """
    held, groups = held_out_batches(federation, batch_size)
    examples, names = federation.examples, scoring.score_names(federation.examples.labels)
    zeros = jnp.zeros((sum(size for _, size in groups) + 1, len(names)), float)  # the last segment is padding
    add_batches = jax.jit(partial(scoring.add_batches, problem))
    totals, _ = add_batches(variables, jnp.int32(round), examples, zeros, held)
    return collect_scores(groups, np.asarray(totals), {}, federation, round)


def has_own_models(clients: ClientState, algorithm: Algorithm) -> bool:
    """Whether clients have personal models: some leaves are personal, or a rule builds or chooses them."""
    return scoring.has_rule_for_own_models(algorithm) or bool(jax.tree.leaves(clients.personal))


def collect_scores(
    groups: Groups,
    totals: HostArray,
    own: Mapping[str, HostArray],
    federation: Federation,
    round: int,
    versions: HostArray | None = None,
) -> Evaluation:
    """Convert sums of scores to an Evaluation; leading axes (seeds) are preserved.

    Args:
        groups: The groups of segments.
        totals: Sums over each segment, [..., segments, scores].
        own: {field of Evaluation: sums of the personal models, [..., clients, scores]}.
        federation: The clients and their data. If data change with the round, segments of clients are versions of them.
        round: The number of completed rounds.
        versions: Sums of the personal models over the test examples of each version; None without such models.
    """
    phases, is_text = federation.phases, are_tokens(federation.examples.inputs)
    names = scoring.score_names(federation.examples.labels)
    bounds, by_phase = np.cumsum([0] + [size for _, size in groups]), None
    sums = {name: totals[..., a:b, :] for (name, _), a, b in zip(groups, bounds, bounds[1:], strict=False)}
    if phases is not None:
        by_phase = measure_phases(phases, round, sums["clients"], versions)
        present = phases.rows[phases.number(max(round - 1, 0))]
        sums |= {name: sums[name][..., present, :] for name in BY_VERSION & sums.keys()}
    parts = {name: _mean_scores(names, part, is_text) for name, part in sums.items()}
    model = own[scoring.MODEL][..., 0].astype(int) if scoring.MODEL in own else None
    personal = {
        name: _mean_scores(names, sums, is_text)._replace(model=model)
        for name, sums in own.items()
        if name != scoring.MODEL
    }
    single = {name: jax.tree.map(lambda x: x[..., 0], part) for name, part in parts.items()}
    return Evaluation(
        test=single.get("test"),
        clients=parts["clients"],
        personal=personal.get("personal"),
        personal_test=personal.get("personal_test"),
        personal_valid=personal.get("personal_valid"),
        newcomers=parts.get("newcomers"),
        valid=parts.get("valid"),
        unseen={name.removeprefix("unseen/"): part for name, part in single.items() if name.startswith("unseen/")},
        phases=by_phase,
    )


def _mean_scores(names: Sequence[str], totals: HostArray, is_text: bool) -> Metrics:
    sums = {name: totals[..., i] for i, name in enumerate(names)}
    count, num_defined = sums["num_examples"], sums.get("num_defined")

    def mean(total: HostArray, num: HostArray) -> HostArray:
        return total / (num + (num == 0))

    loss = mean(sums["loss"], count)
    accuracy = mean(sums["accuracy"], count if num_defined is None else num_defined) if "accuracy" in sums else None
    overlap = {name: mean(sums[name], count) for name in OVERLAP_METRICS if name in sums} or None
    return Metrics(loss, accuracy, count, overlap, token_loss=loss if is_text else None, num_defined=num_defined)
