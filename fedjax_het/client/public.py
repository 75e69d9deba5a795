"""Public examples at a client: its logits on them, and training towards a consensus (FedMD)."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import LocalUpdate, Measure, Problem
from fedjax_het.client.objectives._distillation import divergence
from fedjax_het.client.schedules import Schedule, rate
from fedjax_het.errors import InputError
from fedjax_het.types import Array, ClientView, Key, Params, PyTree, Trained, Variables
from fedjax_het.validation import Count, validate_arguments

Distance = Literal["absolute", "squared", "kl"]


def _absolute(target: Array, logits: Array) -> Array:
    """Differences of the size of rounding errors count as 0, and so does their gradient, which is otherwise 1 or -1."""
    size = jnp.abs(logits - target)
    is_equal = size <= 16 * jnp.finfo(size.dtype).eps * (1 + jnp.abs(target))
    return jnp.mean(jnp.where(is_equal, 0, size), axis=-1)


DISTANCES: dict[Distance, Callable[[Array, Array], Array]] = {
    "absolute": _absolute,
    "squared": lambda target, logits: jnp.mean(jnp.square(logits - target), axis=-1),
    "kl": divergence,
}
"""(target, logits [batch, class]) -> distances [batch]; absolute and squared ones are means over classes."""


@validate_arguments
def public_logits(sample_size: Count = 256, batch_size: Count = 256) -> Measure:
    """[sample, class]: the logits of view.start on the first public examples of the round, in evaluation mode.

    Args:
        sample_size: The number of examples.
        batch_size: Number of examples per step; does not affect the result.

    Raises:
        InputError: There are fewer public examples.
    """

    def measure(problem: Problem, view: ClientView) -> Array:
        public, size = view.data.examples.public, min(batch_size, sample_size)
        if public is not None and sample_size > len(public.order):
            raise InputError(f"sample_size: {sample_size} of {len(public.order)} public examples. Give at most all.")

        def run(number: Array) -> Array:
            batch = problem.public_batch(public, number * size, size)
            return problem.run(view.start, batch, view.received.round, make_key(0), is_training=False)[0].logits

        logits = jax.lax.map(run, jnp.arange(-(-sample_size // size)))
        return logits.reshape(-1, logits.shape[-1])[:sample_size]

    return measure


class _Progress(NamedTuple):
    params: Params
    state: Variables
    optimizer: PyTree
    loss: Float[Array, ""]  # summed over steps, as is
    drift: Float[Array, ""] | None  # if a diagnostic requests it


@validate_arguments
def digest(
    optimizer: optax.GradientTransformation,
    sample_size: Count = 256,
    *,
    batch_size: Count = 256,
    epochs: Count = 1,
    distance: Distance = "absolute",
    schedule: Schedule | None = None,
) -> LocalUpdate:
    """Train towards the published logits of the first public examples of the round, in their order.

    A client without examples of its own takes no step. The optimizer starts anew in every round.
    Reads: view.local, published["logits"] [sample, class], see `public_logits`.

    Args:
        optimizer: The optimizer.
        sample_size: As in `public_logits`.
        batch_size: The number of examples per step; the last batch of an epoch may be partial.
        epochs: The number of epochs per round.
        distance: "absolute" or "squared", means over classes, or "kl", KL(softmax(target) || softmax(logits)).
        schedule: Round -> factor of the learning rate.
    """
    num_batches = -(-sample_size // batch_size)

    def train(problem: Problem, view: ClientView, key: Key, with_drift: bool = False) -> Trained:
        public, targets = view.data.examples.public, view.received.published["logits"]
        num_steps = jnp.where(view.data.train.count > 0, epochs * num_batches, 0)
        if view.max_steps is not None:
            num_steps = jnp.minimum(num_steps, view.max_steps)

        def step(number: Array, progress: _Progress) -> _Progress:
            first = (number % num_batches) * batch_size
            places = first + jnp.arange(batch_size)
            batch = problem.public_batch(public, first, batch_size)
            batch = batch._replace(mask=batch.mask * (places < sample_size))
            wanted, own_key = targets[jnp.minimum(places, sample_size - 1)], jax.random.fold_in(key, number)

            def loss(params: Params) -> tuple[Array, Variables]:
                variables = {"params": params, **progress.state}
                outputs, state = problem.run(variables, batch, view.received.round, own_key)
                distances = DISTANCES[distance](wanted, outputs.logits)
                return jnp.sum(batch.mask * distances) / jnp.maximum(jnp.sum(batch.mask), 1), state

            (value, state), gradient = jax.value_and_grad(loss, has_aux=True)(progress.params)
            updates, opt_state = optimizer.update(gradient, progress.optimizer, progress.params)
            if schedule:
                updates = tree.scale(rate(1.0, schedule, view), updates)
            params, drift = optax.apply_updates(progress.params, updates), progress.drift
            if drift is not None:
                drift = drift + tree.squared_norm(tree.subtract(params, view.start["params"]))
            return _Progress(params, state, opt_state, progress.loss + value, drift)

        params, state = tree.split_params(view.local)
        drift = jnp.zeros((), float) if with_drift else None
        start = _Progress(params, state, optimizer.init(params), jnp.zeros((), targets.dtype), drift)
        done = jax.lax.fori_loop(0, num_steps, step, start)
        mean_loss = jnp.asarray(done.loss / jnp.maximum(num_steps, 1), float)
        metrics = {"loss": mean_loss, "last_epoch_loss": mean_loss}
        if done.drift is not None:
            metrics["drift"] = done.drift / jnp.maximum(num_steps, 1)
        return Trained({"params": done.params, **done.state}, jnp.asarray(num_steps, float), done.optimizer, metrics)

    def count_steps(num_examples: Any) -> Any:
        return np.where(np.asarray(num_examples) > 0, epochs * num_batches, 0)

    return LocalUpdate(train, count_steps, batch_size, partial(train, with_drift=True))
