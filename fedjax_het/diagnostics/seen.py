"""What diagnostics are made of: client models, their losses on whose examples one likes, products of updates."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from fedjax_het import tree
from fedjax_het._internal.float64 import run_in_required_precision
from fedjax_het.types import Array, Batch, Context, Named, PyTree, RoundSnapshot, Rows, Variables

BATCH = 256


def client_models(look: RoundSnapshot) -> Variables:
    """What each client trained, leaves [cohort, ...]: shared leaves as it sent them, its own as it keeps them."""
    received = look.view.received.shared
    trained = jax.tree.map(lambda start, update: start + update, received, look.view.updates.tensors())
    return tree.merge(trained, look.personal)


def global_models(look: RoundSnapshot) -> Variables:
    """The server's new model with each client's own leaves, [cohort, ...]."""
    num = look.view.cohort.shape[0]
    return tree.merge(jax.tree.map(lambda x: jnp.broadcast_to(x, (num, *x.shape)), look.shared), look.personal)


def encoded(problem, variables: Variables, look: RoundSnapshot, batch: Batch) -> tuple[Array, Named]:
    """(features, extras) in evaluation mode."""
    context = Context(batch.mask, look.view.received.round, look.key, False)
    return problem.model.encode(variables, batch.inputs, context)[0]


def logits(problem, variables: Variables, look: RoundSnapshot, batch: Batch) -> Array:
    """[batch, class], or [batch, height, width, class], in evaluation mode."""
    features, _ = encoded(problem, variables, look, batch)
    return problem.model.classify(variables["params"], features)


def total_loss(problem, variables: Variables, look: RoundSnapshot, batch: Batch) -> Array:
    """[], the sum over the batch's examples: cross-entropies in evaluation mode; of masks their means over pixels."""
    found = logits(problem, variables, look, batch)
    losses = optax.softmax_cross_entropy_with_integer_labels(found, batch.labels)
    return jnp.sum(jnp.where(batch.mask > 0, losses.reshape(losses.shape[0], -1).mean(axis=1), 0))


def over_rows(
    problem, look: RoundSnapshot, rows: Rows, add: Callable[[PyTree, Batch], PyTree], total: PyTree
) -> PyTree:
    """total = add(total, batch) for batch after batch of one client's row [capacity], divided as in evaluation."""
    size = rows.even_batch_size(BATCH)

    def step(number: Array, total: PyTree) -> PyTree:
        last = jnp.minimum(rows.count, (number + 1) * size)
        return add(total, problem.batch(look.data, rows.index, last, number * size, BATCH))

    return jax.lax.fori_loop(0, -(-rows.count // BATCH), step, total)


def mean_loss(problem, variables: Variables, look: RoundSnapshot, rows: Rows) -> Array:
    """[] over the examples of one client's row; 0 where there is none."""

    def add(total: Array, batch: Batch) -> Array:
        return total + total_loss(problem, variables, look, batch)

    return over_rows(problem, look, rows, add, jnp.zeros((), float)) / jnp.maximum(rows.count, 1)


def of_parameters(path: str) -> bool:
    """Choose parameters in a stack of updates."""
    return path.startswith("params/")


def from_gram(measure: Callable[..., Named], look: RoundSnapshot, *others: PyTree) -> Named:
    """measure(Gram matrix of the updates' parameters in float64, *others), in the process's own precision."""
    stack = look.view.updates.select(of_parameters)
    return run_in_required_precision(lambda: measure(stack.gram(), *others))
