"""Scores of models on held-out examples, computed in pieces of several batches or clients.

The order of summation does not depend on the pieces, so evaluations are bitwise equal whether examples and client
states are on the device or streamed.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm, OutputMixture
from fedjax_het.engine.evaluation.norm_statistics import add_own_statistics
from fedjax_het.engine.evaluation.segmentation_metrics import OVERLAP_METRICS, overlap_metrics
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.round import server_step
from fedjax_het.engine.round.client_step import Cohort, CohortMember, Common, cohort_members, make_personal_model
from fedjax_het.labels import batch_losses, find_kind, is_counted, mean_per_example
from fedjax_het.placeholders import HIDDEN_TEST_ROWS
from fedjax_het.problem import Problem
from fedjax_het.survival import concordance
from fedjax_het.types import (
    Array,
    Broadcast,
    ClientData,
    ClientState,
    Context,
    Examples,
    HostArray,
    Key,
    Phase,
    Rows,
    ServerState,
    Variables,
)

MODEL = "model"
_PERSONALIZING = 2  # 0 and 1 of a round's key are for its cohort and its clients


class Batches(NamedTuple):
    """Held-out examples in batches of one segment each (a client's, a test set's), some batches per step of a loop.

    A network that normalizes by its batch thus scores a client by that client's examples alone.
    """

    index: Int[HostArray, "steps batches size"]
    count: Int[HostArray, "steps batches"]  # the number of examples; the rest is padding
    segment: Int[HostArray, "steps batches"]  # the last segment is for padding


HeldOut = tuple[Batches, ...]
"""All held-out examples; one entry per padded batch size."""


def score_names(labels: HostArray) -> tuple[str, ...]:
    """The names of the sums over examples: their number, and the scores whose means are reported.

    For sequences, every position except padding counts as an example, and every known tag. Numbers have no accuracy.
    For survival times, "num_defined" counts the examples in batches with a comparable pair.
    """
    others = {"times": ("accuracy", "num_defined"), "masks": ("accuracy", *OVERLAP_METRICS), "numbers": ()}
    return ("num_examples", "loss", *others.get(find_kind(labels).name, ("accuracy",)))


def add_batches(
    problem: Problem,
    variables: Variables | OutputMixture,
    round: Array,
    examples: Examples,
    totals: Array,
    held: HeldOut,
    with_predictions: bool = False,
) -> tuple[Array, tuple[Array, ...]]:
    """Add the scores of several batches to sums over segments.

    Args:
        problem: The learning problem.
        variables: The variables of the model.
        round: [] int32.
        examples: The examples.
        totals: The sums so far, [segments, scores], see `score_names`.
        held: The batches.
        with_predictions: Whether to return predictions too.

    Returns:
        The new sums, and for each entry of `held` the predictions [steps, batches, size, ...], see `_score_batch`; ()
        without predictions.
    """

    def score(index: HostArray, count: HostArray) -> tuple[Array, Array | None]:
        is_example = jnp.arange(len(index)) < count
        return _score_batch(problem, variables, round, examples, index, is_example, with_predictions)

    def add(totals: Array, step: Batches) -> tuple[Array, Array | None]:
        if len(step.count) == 1:
            sums, predictions = score(step.index[0], step.count[0])
            return totals.at[step.segment[0]].add(sums), None if predictions is None else predictions[None]
        sums, predictions = jax.vmap(score)(step.index, step.count)
        return totals.at[step.segment].add(sums), predictions

    predictions = []
    for batches in held:
        totals, predicted = jax.lax.scan(add, totals, batches)
        predictions += [] if predicted is None else [predicted]
    return totals, tuple(predictions)


def has_rule_for_own_models(algorithm: Algorithm) -> bool:
    """Whether a client's own model depends on more than the server's state and its personal leaves."""
    return algorithm.personalize is not None or algorithm.models is not None


def score_own_models(
    algorithm: Algorithm,
    problem: Problem,
    layout: Layout,
    batch_size: int,
    server: ServerState,
    clients: ClientState,
    data: ClientData,
    tables: Mapping[str, Rows],
    block: Cohort,
    key: Key,
    with_predictions: bool = False,
    phase: Phase | None = None,
) -> dict[str, tuple[Array, Array | None]]:
    """Sum the scores of the personal models of a block of clients, each on its own rows.

    Args:
        algorithm: The algorithm. If `has_rule_for_own_models`, memory and `data.train` are read; `data.train` also if
            the model has static norms.
        problem: The learning problem.
        layout: The layout of the client axis.
        batch_size: The maximum number of examples per batch.
        server: The server's state between rounds.
        clients: The states of the block, leaves [slots, ...]; their number is a `Layout.round_up`.
        data: All examples, and the training and validation rows of the block.
        tables: The rows of the block to score, by table name.
        block: The ids, and which of them are not padding.
        key: The key of the run; client keys are functions of the round and the client id.
        with_predictions: Whether to return predictions too.
        phase: The phase of the data; None if they never change.

    Returns:
        By table name, sums [slots, scores] and predictions for the rows [slots, capacity, ...], see `_score_batch`, or
        None. MODEL: the number of the server's model of each client [slots, 1], if there are several.
    """
    if not has_rule_for_own_models(algorithm):
        clients = clients._replace(memory={})
    published = server_step.select_sent(algorithm.published, server.published)
    received = Broadcast(server.round, server.shared, published, base=server.base, phase=phase)
    common = Common(received, data.examples, server.frozen)
    round_key = jax.random.fold_in(jax.random.fold_in(key, server.round), _PERSONALIZING)

    def score_client(
        common: Common, client: tuple[CohortMember, dict[str, Rows]]
    ) -> dict[str, tuple[Array, Array | None]]:
        member, own_tables = client
        variables, model = make_personal_model(algorithm, problem, common, member)
        bound = common.bind(problem, member.client)
        if not isinstance(variables, OutputMixture):
            own = ClientData(common.examples, *member.rows, HIDDEN_TEST_ROWS)
            variables = add_own_statistics(bound, variables, common.received.round, own, batch_size)
        scores = {name: score_rows(bound, common, variables, own) for name, own in own_tables.items()}
        return scores if model is None else scores | {MODEL: (model[None].astype(float), None)}

    def score_rows(
        bound: Problem, common: Common, variables: Variables | OutputMixture, own: Rows
    ) -> tuple[Array, Array | None]:
        received, examples, size = common.received, common.examples, own.even_batch_size(batch_size)
        capacity = own.index.shape[0]

        def score(places: Array, is_example: Array) -> tuple[Array, Array | None]:
            index = own.index[jnp.minimum(places, capacity - 1)]
            return _score_batch(bound, variables, received.round, examples, index, is_example, with_predictions)

        def add_batch(number: Array, carry: tuple[Array, Array | None]) -> tuple[Array, Array | None]:
            totals, predictions = carry
            places = number * size + jnp.arange(batch_size)
            is_example = places < jnp.minimum(own.count, (number + 1) * size)
            sums, predicted = score(places, is_example)
            if predictions is not None:
                predictions = predictions.at[jnp.where(is_example, places, capacity)].set(predicted, mode="drop")
            return totals + sums, predictions

        zeros, predictions = jnp.zeros(len(score_names(examples.labels)), float), None
        if with_predictions:
            _, prediction = jax.eval_shape(score, jnp.zeros(batch_size, int), jnp.zeros(batch_size, bool))
            predictions = jnp.zeros((capacity, *prediction.shape[1:]), prediction.dtype)
        with jax.named_scope("batches"):
            return jax.lax.fori_loop(0, -(-own.count // batch_size), add_batch, (zeros, predictions))

    return layout.map(score_client, common, (cohort_members(clients, data, block, round_key), dict(tables)))


def rows_of_block(rows: Rows, block: Cohort) -> Rows:
    """The rows of a block of clients, from a table with one row per client or a single row for all."""
    row_number = block.ids % rows.count.shape[0]
    return Rows(rows.index[row_number], jnp.where(block.is_here, rows.count[row_number], 0))


def _score_batch(
    problem: Problem,
    variables: Variables | OutputMixture,
    round: Array,
    examples: Examples,
    index: HostArray,
    is_example: Array,
    with_predictions: bool,
) -> tuple[Array, Array | None]:
    """Sum the scores of the examples of a batch, [scores]; loss and accuracy of a mask are means over its pixels.

    The second result is None or the predictions for all examples, including padding: float32 outputs [batch, ...], or,
    for masks, the class of each pixel, [batch, *pixels], in the smallest integer type for all classes.

    The loss is the default one of the kind of labels, see `fedjax_het.labels`; accuracy is the share of labels that are
    predicted correctly. For survival times, accuracy is the C-index of the batch, and the loss uses risk sets within
    the batch: both are exact for a client or held-out set if all of its examples fit in a batch.
    """
    inputs, labels = examples.read(index)
    inputs = problem.prepare(inputs)
    mask = is_example.astype(jnp.promote_types(inputs.dtype, jnp.float32))
    context = Context(mask, round, make_key(0), False)

    def compute_logits(variables: Variables) -> Array:
        (features, _), _ = problem.model.encode(variables, inputs, context)
        return problem.model.classify(variables["params"], features)

    if isinstance(variables, OutputMixture):
        first, *others = (w * compute_logits(m) for w, m in zip(variables.weights, variables.models, strict=True))
        logits = sum(others, start=first)
    else:
        logits = compute_logits(variables)
    kind, losses = find_kind(labels), batch_losses(logits, labels, is_example)
    predicted: Any = None if kind.decide is None else kind.decide(logits)
    others = []
    if predicted is not None:
        others = [(predicted == labels).astype(losses.dtype)]
    elif kind.name == "times":
        others = [jnp.full_like(losses, number) for number in concordance(logits, labels, is_example)]
    values = (jnp.ones_like(losses), losses, *others)
    if kind.is_partial:
        scores = [jnp.sum(jnp.where(is_counted(labels), x, 0), axis=1) for x in values]
    else:
        scores = [mean_per_example(x, labels) for x in values]
    if kind.name == "masks":
        overlaps = overlap_metrics(predicted, labels, logits.shape[-1])
        scores += [overlaps[name] for name in OVERLAP_METRICS]
    sums = jnp.sum(jnp.where(is_example[:, None], jnp.stack(scores, axis=-1).astype(float), 0), axis=0)
    if not with_predictions:
        return sums, None
    if kind.name == "masks":
        return sums, predicted.astype(np.min_scalar_type(logits.shape[-1]))
    return sums, logits.astype(jnp.float32)
