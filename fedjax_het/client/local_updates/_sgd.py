"""Mini-batch training of a client within a round."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from fedjax_het import tree
from fedjax_het._internal.random_order import draw_bits, sort_by_bits
from fedjax_het.algorithm import GradientRule, LocalUpdate, Problem, StatefulGradientRule
from fedjax_het.annotations import LogUniform
from fedjax_het.client import private_gradients
from fedjax_het.client.gradients import plain_gradient
from fedjax_het.client.measures import loss_of
from fedjax_het.client.optimizers import Betas, local_optimizer, trainable_only
from fedjax_het.client.schedules import Schedule, check_schedule, rate
from fedjax_het.errors import InputError
from fedjax_het.placeholders import unseal
from fedjax_het.types import Array, Batch, ClientView, HostArray, Key, Params, PyTree, Rows, Trained, Variables
from fedjax_het.validation import Count, FractionBelowOne, NonNegative, validate_arguments

_AUGMENTING = 1 << 16  # does not collide with the small numbers that split a step's key


LearningRate = Annotated[NonNegative, LogUniform(1e-3, 1.0)]


class TrainingWithoutMomentum(TypedDict, total=False):
    """The settings of `Training` for an algorithm with its own arguments for the learning rate and momentum."""

    weight_decay: NonNegative
    batch_size: Count
    epochs: Count | None
    steps: Count | None
    shuffle: bool
    optimizer: optax.GradientTransformation | Literal["adam"] | None
    betas: Betas | None
    learning_rate_schedule: Schedule | None
    only: str | None


class TrainingWithoutRate(TrainingWithoutMomentum, total=False):
    """The settings of `Training` for an algorithm with its own argument for the learning rate."""

    momentum: FractionBelowOne


class Training(TrainingWithoutRate, total=False):
    """The settings of local training that every algorithm passes to `sgd`, where they are documented."""

    learning_rate: LearningRate


def split_training(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(The settings that are not of local training, those of `Training`)."""
    training = {name: value for name, value in options.items() if name in Training.__optional_keys__}
    return {name: value for name, value in options.items() if name not in training}, training


def refuse_only(reason: str, training: Any) -> None:
    """Raise InputError if `only` is among the settings of an algorithm that chooses itself what is trained."""
    if training.pop("only", None) is not None:
        raise InputError(f"only: {reason}. Leave `only` out.")


def pop_optimizer(training: Training) -> optax.GradientTransformation:
    """Remove the optimizer and its betas from the settings and build it as `sgd` would, to store its state."""
    return local_optimizer(
        training.pop("optimizer", None),
        training.get("learning_rate", 0.1),
        training.get("momentum", 0.0),
        training.get("weight_decay", 0.0),
        training.pop("betas", None),
    )


class _Progress(NamedTuple):
    params: Params
    state: Variables
    optimizer: PyTree
    loss: Float[Array, "2"]  # summed over the examples of the round, and of this epoch
    num_examples: Float[Array, "2"]  # the number of those examples
    drift: Float[Array, ""] | None  # summed over the steps, if a diagnostic requests it
    gradient: PyTree  # the state of a stateful gradient rule, or ()


@validate_arguments
def sgd(
    learning_rate: NonNegative = 0.1,
    momentum: FractionBelowOne = 0.0,
    weight_decay: NonNegative = 0.0,
    *,
    batch_size: Count = 50,
    epochs: Count | None = None,
    steps: Count | None = None,
    shuffle: bool = True,
    optimizer: optax.GradientTransformation | Literal["adam"] | None = None,
    betas: Betas | None = None,
    learning_rate_schedule: Schedule | None = None,
    only: str | None = None,
    gradient: GradientRule | StatefulGradientRule = plain_gradient,
    keep_optimizer: bool = False,
    early_stopping: NonNegative | None = None,
    factor: Callable[[ClientView], Array] | None = None,
) -> LocalUpdate:
    """Mini-batch training in PyTorch's order: g <- g + decay w;  b <- momentum b + g;  w <- w - lr b.

    A client trains for epochs ceil(n_i / batch_size) steps per round; the last batch of an epoch may be partial and is
    never dropped. Clients differ in their numbers of steps; if they are trained in parallel, those with few steps wait.

    Reads: view.local, the starting point of training, and view.max_steps if the round has a deadline.

    Args:
        learning_rate: Learning rate lr.
        momentum: Momentum of b <- momentum b + g.
        weight_decay: Decay of g <- g + decay w.
        batch_size: Number of examples per step, the papers' B.
        epochs: Number of epochs per round, the papers' E. None: one epoch.
        steps: Number of steps per round, instead of epochs; batches cycle through the examples.
        shuffle: Whether to shuffle examples in each epoch, as a function of (seed, round, client, epoch). False keeps
            the order of the index.
        optimizer: "adam", or any optax transformation, instead of SGD; see `optimizers`.
        betas: Betas of Adam. None: .9, .999.
        learning_rate_schedule: Round -> factor of the learning rate, for every optimizer; see `schedules`. None: 1.
        only: Pattern of the parameters to train, see `optimizers.trainable_only`.
        gradient: Rule that computes gradients for the optimizer. The last state of a stateful rule is
            `results["gradient"]`.
        keep_optimizer: Whether training continues with memory["optimizer"] instead of resetting the optimizer in each
            round, see `memories.optimizer_state`.
        early_stopping: Training ends after epoch e > 0 if it lowered the mean loss on the client's validation examples
            (training examples without any) by less than early_stopping / (e + 1). None: never.
        factor: View -> factor of the learning rate, beside the schedule, such as one that the server publishes.

    Returns:
        The local update.

    Raises:
        InputError: A number is out of range, steps and epochs are both given, a value of the schedule is not a finite
            number of at least 0, `only` is combined with keep_optimizer, or early_stopping has too few epochs.
    """
    if steps is not None and epochs is not None:
        raise InputError(f"steps: {steps} steps and {epochs} epochs per round are given. Set one of them to None.")
    epochs = 1 if epochs is None else epochs
    check_schedule(learning_rate_schedule)
    if keep_optimizer and only is not None:
        raise InputError(
            "only: not supported if the optimizer is kept between rounds. Restrict the optimizer and its memory."
        )
    if early_stopping is not None and epochs < 3:
        raise InputError("early_stopping: without effect for fewer than three epochs per round. Set epochs=3 or more.")
    optimizer = trainable_only(local_optimizer(optimizer, learning_rate, momentum, weight_decay, betas), only)
    rule = gradient if isinstance(gradient, StatefulGradientRule) else _without_state(gradient)
    step = _build_step(optimizer, rule, batch_size, learning_rate_schedule, factor, only)

    def train(problem: Problem, view: ClientView, key: Key, with_drift: bool = False) -> Trained:
        rows = view.data.train
        if problem.privacy:
            private_gradients.check_training(steps, shuffle)
        num_batches = -(-rows.count // batch_size)
        num_steps = jnp.where(rows.count > 0, steps, 0) if steps else epochs * num_batches
        if view.max_steps is not None:
            num_steps = jnp.minimum(num_steps, view.max_steps)

        def epoch(number: Array, progress: _Progress) -> _Progress:
            epoch_key, reset = jax.random.fold_in(key, number), jnp.array([1.0, 0.0])
            progress = progress._replace(loss=progress.loss * reset, num_examples=progress.num_examples * reset)
            epoch_view = view._replace(local={"params": progress.params, **progress.state})
            order = _shuffle(epoch_key, rows) if shuffle and not problem.privacy else rows.index
            last = jnp.minimum(num_batches, num_steps - number * num_batches)
            train_batch = lambda i, p: step(problem, epoch_view, order, epoch_key, i, p)  # noqa: E731
            with jax.named_scope("steps"):
                return jax.lax.fori_loop(0, last, train_batch, progress)

        opt_state = view.memory["optimizer"] if keep_optimizer else optimizer.init(view.local["params"])
        num_epochs = -(-num_steps // jnp.maximum(num_batches, 1))
        with jax.named_scope("epochs"):
            start = _start_training(view, opt_state, rule.init(view), with_drift)
            if early_stopping is None:
                progress = jax.lax.fori_loop(0, num_epochs, epoch, start)
            else:
                loss = loss_of(problem, view, "valid_or_train", batch_size)
                number, progress = _train_until_flat(epoch, jnp.asarray(num_epochs), early_stopping, loss, start)
                num_steps = jnp.minimum(num_steps, number * num_batches)
        trained = _finish_training(progress, num_steps)
        return trained._replace(results={"gradient": progress.gradient}) if rule is gradient else trained

    def count_steps(num_examples: Any) -> Any:
        count = np.asarray(num_examples).astype(np.int64)
        return np.where(count > 0, steps, 0) if steps else epochs * -(-count // batch_size)

    return LocalUpdate(train, count_steps, batch_size, partial(train, with_drift=True))


def _start_training(view: ClientView, opt_state: PyTree, gradient: PyTree, with_drift: bool) -> _Progress:
    params, state = tree.split_params(view.local)
    zero = jnp.zeros(2, float)
    return _Progress(params, state, opt_state, zero, zero, jnp.zeros((), float) if with_drift else None, gradient)


def _train_until_flat(
    epoch: Callable, num_epochs: Array, gain: float, loss: Callable[[Variables], Array], start: _Progress
) -> tuple[Array, _Progress]:
    """(The number of epochs, their result); see `early_stopping` of `sgd`."""

    def train(carry: tuple) -> tuple:
        number, progress, before, _ = carry
        progress = epoch(number, progress)
        after = loss({"params": progress.params, **progress.state})
        return number + 1, progress, after, before - after < gain / (number + 1)

    first = jnp.zeros((), jnp.int32), start, jnp.full((), jnp.inf), jnp.zeros((), bool)
    return jax.lax.while_loop(lambda carry: (carry[0] < num_epochs) & ~carry[3], train, first)[:2]


def _finish_training(done: _Progress, num_steps: HostArray) -> Trained:
    losses = done.loss / jnp.maximum(done.num_examples, 1)
    metrics = {"loss": losses[0], "last_epoch_loss": losses[1]}
    if done.drift is not None:
        metrics["drift"] = done.drift / jnp.maximum(num_steps, 1)
    return Trained({"params": done.params, **done.state}, jnp.asarray(num_steps, float), done.optimizer, metrics)


def _without_state(rule: GradientRule) -> StatefulGradientRule:
    def update(
        own: PyTree, problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple:
        return rule(problem, params, state, batch, view, key), own

    return StatefulGradientRule(lambda view: (), update)


def _build_step(
    optimizer: optax.GradientTransformation,
    rule: StatefulGradientRule,
    batch_size: int,
    schedule: Schedule | None,
    factor: Callable[[ClientView], Array] | None,
    only: str | None,
) -> Callable:
    def step(problem: Problem, view: ClientView, order: Array, key: Key, index: Array, progress: _Progress):
        rows = view.data.train
        key = jax.random.fold_in(key, index)
        if problem.privacy:
            problem, batch = private_gradients.start_step(problem, progress.params, view, batch_size, only, key)
        else:
            augmenting = jax.random.fold_in(key, _AUGMENTING)
            batch = problem.batch(view.data, order, rows.count, index * batch_size, batch_size, augmenting)
        ((loss, state), direction), own = rule.update(
            progress.gradient, problem, progress.params, progress.state, batch, view, key
        )
        updates, opt_state = optimizer.update(direction, progress.optimizer, progress.params)
        if schedule:
            updates = tree.scale(rate(1.0, schedule, view), updates)
        if factor:
            updates = tree.scale(factor(view), updates)
        loss, mask = unseal((loss, batch.mask))
        count, drift, params = jnp.sum(mask), progress.drift, optax.apply_updates(progress.params, updates)
        if drift is not None:
            drift = drift + tree.squared_norm(tree.subtract(params, view.start["params"]))
        losses, num_examples = progress.loss + loss * count, progress.num_examples + count
        return _Progress(params, state, opt_state, losses, num_examples, drift, own)

    return step


def _shuffle(key: Key, rows: Rows) -> Array:
    """The client's examples in random order, with padding last; the order does not depend on the table's capacity."""
    slots = jnp.arange(rows.index.shape[0])
    return rows.index[sort_by_bits(draw_bits(key, slots), slots < rows.count)]
