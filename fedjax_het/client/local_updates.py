"""How a client trains in a round: batches, epochs and the local optimizer."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het import tree
from fedjax_het.algorithm import GradientRule, LocalUpdate, Problem
from fedjax_het.client.gradients import plain
from fedjax_het.client.optimizers import local_optimizer
from fedjax_het.client.restriction import restricted
from fedjax_het.client.schedules import Schedule, rate
from fedjax_het.errors import InputError
from fedjax_het.types import Array, ClientView, Key, Params, PyTree, Rows, Trained, Variables

_AUGMENTING = 1 << 16  # far from the small numbers that a step's key is split into


class Training(TypedDict, total=False):
    """The settings of local training that every recipe hands on to `sgd`, which documents them."""

    learning_rate: float
    momentum: float
    weight_decay: float
    batch_size: int
    epochs: int
    steps: int | None
    shuffle: bool
    optimizer: optax.GradientTransformation | Literal["adam"] | None
    learning_rate_schedule: Schedule | None
    only: str | None


class _Progress(NamedTuple):
    params: Params
    state: Variables
    optimizer: PyTree
    loss: Array  # [2]: summed over the examples of the round, and of this epoch
    num_examples: Array  # [2]: how many those are
    drift: Array | None  # [] summed over the steps, where somebody watches


def sgd(
    learning_rate: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    *,
    batch_size: int = 50,
    epochs: int = 1,
    steps: int | None = None,
    shuffle: bool = True,
    optimizer: optax.GradientTransformation | Literal["adam"] | None = None,
    learning_rate_schedule: Schedule | None = None,
    only: str | None = None,
    gradient: GradientRule = plain,
    keep_optimizer: bool = False,
) -> LocalUpdate:
    """Mini-batch training in PyTorch's order: g <- g + decay w;  b <- momentum b + g;  w <- w - lr b.

    epochs ceil(n_i / batch_size) steps a round; the last batch of an epoch is partial, never dropped. Every client has
    its own number of steps: one after another each takes just its own, side by side the short ones wait.

    learning_rate, momentum, weight_decay: of w <- w - lr b, with b <- momentum b + g and g <- g + decay w.
    batch_size, epochs: examples of a step and passes over all of a client's, the papers' B and E.
    steps: exactly so many steps instead, going round the examples.
    shuffle: a new order each epoch, a function of (seed, round, client, epoch); False keeps the order of the index.
    optimizer: any optax transformation instead of SGD, or "adam", see `optimizers`.   gradient: the rule that feeds it.
    learning_rate_schedule: round -> what the rate is multiplied by, whatever the optimizer; see `schedules`. None: 1.
    only: the parameters that are trained, see `restricted`.
    keep_optimizer: go on with memory["optimizer"] instead of starting afresh each round (see `memories`).
    Reads: view.local, where training begins.
    Raises InputError for batch_size, epochs or steps below 1, negative rates, and `only` with keep_optimizer.
    """
    _check(learning_rate, momentum, weight_decay, batch_size, epochs, steps)
    if keep_optimizer and only is not None:
        raise InputError("only: the optimizer is kept between rounds here. Restrict it yourself, where it is kept too.")
    optimizer = restricted(local_optimizer(optimizer, learning_rate, momentum, weight_decay), only)
    step = _stepping(optimizer, gradient, batch_size, learning_rate_schedule)

    def train(problem: Problem, view: ClientView, key: Key, is_watched: bool = False) -> Trained:
        rows = view.data.train
        num_batches = -(-rows.count // batch_size)
        num_steps = jnp.where(rows.count > 0, steps, 0) if steps else epochs * num_batches

        def epoch(number: Array, progress: _Progress) -> _Progress:
            epoch_key, afresh = jax.random.fold_in(key, number), jnp.array([1.0, 0.0])
            progress = progress._replace(loss=progress.loss * afresh, num_examples=progress.num_examples * afresh)
            begun = view._replace(local={"params": progress.params, **progress.state})
            order = _shuffled(epoch_key, rows) if shuffle else rows.index
            last = jnp.minimum(num_batches, num_steps - number * num_batches)
            return jax.lax.fori_loop(0, last, lambda i, p: step(problem, begun, order, epoch_key, i, p), progress)

        opt_state = view.memory["optimizer"] if keep_optimizer else optimizer.init(view.local["params"])
        num_epochs = -(-num_steps // jnp.maximum(num_batches, 1))
        return _finished(jax.lax.fori_loop(0, num_epochs, epoch, _begin(view, opt_state, is_watched)), num_steps)

    def count_steps(num_examples: Any) -> Any:
        count = np.asarray(num_examples)
        return np.where(count > 0, steps, 0) if steps else epochs * -(-count // batch_size)

    return LocalUpdate(train, count_steps, batch_size, partial(train, is_watched=True))


def _begin(view: ClientView, opt_state: PyTree, is_watched: bool) -> _Progress:
    state = {name: leaves for name, leaves in view.local.items() if name != "params"}
    zero = jnp.zeros(2, float)
    return _Progress(view.local["params"], state, opt_state, zero, zero, jnp.zeros((), float) if is_watched else None)


def _finished(done: _Progress, num_steps: Array) -> Trained:
    losses = done.loss / jnp.maximum(done.num_examples, 1)
    metrics = {"loss": losses[0], "last_epoch_loss": losses[1]}
    if done.drift is not None:
        metrics["drift"] = done.drift / jnp.maximum(num_steps, 1)
    return Trained({"params": done.params, **done.state}, jnp.asarray(num_steps, float), done.optimizer, metrics)


def _stepping(
    optimizer: optax.GradientTransformation, gradient: GradientRule, batch_size: int, schedule: Schedule | None
) -> Callable:
    """One step: the batch that comes at `index` in this epoch's order."""

    def step(problem: Problem, view: ClientView, order: Array, key: Key, index: Array, progress: _Progress):
        rows = view.data.train
        key = jax.random.fold_in(key, index)
        augmenting = jax.random.fold_in(key, _AUGMENTING)
        batch = problem.batch(view.data, order, rows.count, index * batch_size, batch_size, augmenting)
        (loss, state), direction = gradient(problem, progress.params, progress.state, batch, view, key)
        updates, opt_state = optimizer.update(direction, progress.optimizer, progress.params)
        if schedule:
            updates = tree.scale(rate(1.0, schedule, view), updates)
        count, drift, params = jnp.sum(batch.mask), progress.drift, optax.apply_updates(progress.params, updates)
        if drift is not None:
            drift = drift + tree.squared_norm(tree.subtract(params, view.start["params"]))
        return _Progress(params, state, opt_state, progress.loss + loss * count, progress.num_examples + count, drift)

    return step


def _shuffled(key: Key, rows: Rows) -> Array:
    """The client's examples in a random order, padding last. Each slot draws from its own key, so that the order does
    not depend on the capacity of the table."""
    slots = jnp.arange(rows.index.shape[0])
    draws = jax.vmap(lambda slot: jax.random.bits(jax.random.fold_in(key, slot)))(slots)
    return rows.index[jnp.lexsort((draws, slots >= rows.count))]


def _check(learning_rate, momentum, weight_decay, batch_size, epochs, steps) -> None:
    for name, value in {"batch_size": batch_size, "epochs": epochs, "steps": 1 if steps is None else steps}.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name}: must be a whole number of at least 1, not {value!r}.")
    for name, value in {"learning_rate": learning_rate, "momentum": momentum, "weight_decay": weight_decay}.items():
        if isinstance(value, int | float) and not (0 <= value < float("inf")):
            raise InputError(f"{name}: must be a finite number of at least 0, not {value!r}.")
