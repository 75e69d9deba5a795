"""The server's model on everything that is held out, and personal models on their own clients' data."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het import tree
from fedjax_het.data.federation import Federation
from fedjax_het.engine.layout import Layout
from fedjax_het.engine.problem import LocalProblem
from fedjax_het.types import Array, ClientState, Context, Examples, Rows, State, Variables


class Metrics(NamedTuple):
    """Means over examples; 0 where there is none."""

    loss: Array
    accuracy: Array
    num_examples: Array


class Evaluation(NamedTuple):
    """clients, personal: leaves [clients]; newcomers: [newcomers]; test and each unseen domain: []."""

    test: Metrics | None  # the server's model on the common test set
    clients: Metrics  # the server's model on each client's test examples
    personal: Metrics | None  # each client's own model on its own; None where nothing is personal
    newcomers: Metrics | None  # the server's model on clients that never trained
    unseen: dict[str, Metrics]  # the server's model on domains that nobody has


class HeldOut(NamedTuple):
    """Every held-out example once, padded to whole batches, and the segment (a client, a test set) it counts for."""

    index: Array  # [batches, batch]
    segment: Array  # [batches, batch]; num_segments for padding


def held_out(federation: Federation, batch_size: int) -> tuple[HeldOut, list[tuple[str, int]]]:
    """The examples to evaluate on, and the segments' groups in order: ("clients", 20), ("test", 1), ..."""
    groups = [("clients", federation.data.test)]
    if federation.newcomers is not None:
        groups.append(("newcomers", federation.newcomers.test))
    if federation.test is not None:
        groups.append(("test", _as_table(federation.test)))
    groups += [(f"unseen/{name}", _as_table(rows)) for name, rows in federation.unseen.items()]
    entries = [row[:count] for _, rows in groups for row, count in zip(rows.index, rows.count, strict=True)]
    index = np.concatenate([*entries, np.zeros(0, np.int32)])
    segment = np.repeat(np.arange(len(entries)), [len(entry) for entry in entries])
    padding = -len(index) % batch_size if len(index) else batch_size
    index = np.pad(index, (0, padding)).reshape(-1, batch_size)
    segment = np.pad(segment, (0, padding), constant_values=len(entries)).reshape(-1, batch_size)
    return HeldOut(index.astype(np.int32), segment.astype(np.int32)), [(name, len(rows.count)) for name, rows in groups]


def _as_table(rows: Rows) -> Rows:
    return Rows(np.asarray(rows.index)[None], np.asarray(rows.count)[None])


def make_evaluation(
    problem: LocalProblem, groups: list[tuple[str, int]], layout: Layout, batch_size: int
) -> Callable[[State, Examples, HeldOut, Rows], Evaluation]:
    """(state, examples, held-out examples, the clients' test rows) -> Evaluation.

    The server's model is completed, where leaves are personal, by their mean over the clients that have trained (over
    all while nobody has): that is what a newcomer would be given.
    """
    num_segments = sum(size for _, size in groups)

    def evaluate(state: State, examples: Examples, held: HeldOut, rows: Rows) -> Evaluation:
        variables = tree.merge(state.server.shared, typical(state.clients, rows.count.shape[0]))
        context = _context(state.server.round)

        def add_batch(totals: Array, batch: HeldOut) -> tuple[Array, None]:
            scores = _scores(problem, variables, examples, batch.index, batch.segment < num_segments, context)
            return totals.at[batch.segment].add(scores), None

        totals, _ = jax.lax.scan(add_batch, jnp.zeros((num_segments + 1, 3), float), held)
        bounds = np.cumsum([0] + [size for _, size in groups])
        parts = {name: _means(totals[a:b]) for (name, _), a, b in zip(groups, bounds, bounds[1:], strict=False)}
        single = {name: jax.tree.map(lambda x: x[0], part) for name, part in parts.items()}
        return Evaluation(
            test=single.get("test"),
            clients=parts["clients"],
            personal=_personal(problem, state, examples, rows, layout, batch_size) if _has_personal(state) else None,
            newcomers=parts.get("newcomers"),
            unseen={name.removeprefix("unseen/"): part for name, part in single.items() if name.startswith("unseen/")},
        )

    return evaluate


def typical(clients: ClientState, num_clients: int) -> Variables:
    """The mean of the personal leaves over the clients that have trained; over all while nobody has."""
    is_client = jnp.arange(clients.rounds.shape[0]) < num_clients
    has_trained = jnp.where(jnp.any(clients.rounds > 0), clients.rounds > 0, is_client)
    return tree.weighted_sum(clients.personal, has_trained / jnp.sum(has_trained))


def _has_personal(state: State) -> bool:
    return bool(jax.tree.leaves(state.clients.personal))


def _context(round: Array) -> Context:
    return Context(jnp.ones(()), round, jax.random.key(0), False)


def _scores(
    problem: LocalProblem, variables: Variables, examples: Examples, index: Array, is_example: Array, context: Context
) -> Array:
    """[batch, 3]: loss, correctness and one, of each example that is not padding."""
    inputs = problem.prepare(examples.inputs[index])
    mask = is_example.astype(inputs.dtype)
    (features, _), _ = problem.model.encode(variables, inputs, context._replace(mask=mask))
    logits, labels = problem.model.classify(variables["params"], features), examples.labels[index]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    correct = (jnp.argmax(logits, -1) == labels).astype(losses.dtype)
    rows = [x.reshape(x.shape[0], -1).mean(axis=1) for x in (losses, correct, jnp.ones_like(losses))]
    return jnp.where(is_example[:, None], jnp.stack(rows, axis=-1).astype(float), 0)


def _means(totals: Array) -> Metrics:
    count = totals[..., 2]
    return Metrics(*(totals[..., i] / jnp.maximum(count, 1) for i in (0, 1)), count)


def _personal(
    problem: LocalProblem, state: State, examples: Examples, rows: Rows, layout: Layout, batch_size: int
) -> Metrics:
    """Every client's own model on its own test examples."""

    def one(common: tuple[Variables, Array, Examples], client: tuple[Variables, Rows]) -> Array:
        shared, round, examples = common
        personal, own = client
        variables = tree.merge(shared, personal)

        def add_batch(number: Array, totals: Array) -> Array:
            slots = number * batch_size + jnp.arange(batch_size)
            index = own.index[jnp.minimum(slots, own.index.shape[0] - 1)]
            scores = _scores(problem, variables, examples, index, slots < own.count, _context(round))
            return totals + jnp.sum(scores, axis=0)

        return jax.lax.fori_loop(0, -(-own.count // batch_size), add_batch, jnp.zeros(3, float))

    num_clients = rows.count.shape[0]
    num_slots = layout.padded(num_clients)
    clients = jax.tree.map(
        lambda x: jnp.pad(x, [(0, num_slots - x.shape[0])] + [(0, 0)] * (x.ndim - 1)), (state.clients.personal, rows)
    )
    common = (state.server.shared, state.server.round, examples)
    return _means(layout.map(one, common, clients)[:num_clients])
