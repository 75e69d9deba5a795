"""A mean of models that is distilled from the ensemble of the clients' models on public examples (FedDF)."""

from collections.abc import Callable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.server.weightings import uniform
from fedjax_het.types import Aggregate, Array, PyTree, ServerView, Variables, WeightedSum
from fedjax_het.validation import Count, CountOrZero, NonNegative, Positive, validate_arguments

Scheme = Literal["logits", "probabilities", "losses"]
_STEADY = 1e-6  # added to the norm of gradients, as in PyTorch's clip_grad_norm_


@validate_arguments
def ensemble_distillation(
    steps: CountOrZero = 1000,
    batch_size: Count = 128,
    learning_rate: NonNegative = 1e-3,
    *,
    scheme: Scheme = "logits",
    temperature: Positive = 1.0,
    clip: Positive = 5.0,
) -> Aggregator:
    """The uniform mean of the models, distilled from their ensemble on public examples.

        w <- mean_i w_i, then `steps` times  w <- Adam(1/B sum_b loss(z_1b, ..., z_mb, z_b)),   z_i: logits of model i
        logits:         KL( softmax(mean_i z_i / T) || softmax(z / T) )
        probabilities:  KL( mean_i softmax(z_i) || softmax(z / T) )
        losses:         mean_i KL( softmax(z_i / T) || softmax(z / T) )

    The models of the clients are in evaluation mode, and constant. Adam starts anew in every round; its rate decreases
    to 0 as a cosine. Batches are consecutive public examples in the order of the round. Stores all models of a cohort.

    Args:
        steps: The number of steps. 0 is the uniform mean.
        batch_size: The number of public examples per step (128).
        learning_rate: The learning rate of Adam (1e-3).
        scheme: "logits" (default), "probabilities" or "losses", as above.
        temperature: T (1).
        clip: Maximum norm of the gradient (5).

    Raises:
        InputError: When traced: leaves are personal, or there are no public examples.

    References:
        Lin, Kong, Stich and Jaggi, Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020.
        arXiv:2006.07242; code epfml/federated-learning-public-code.
    """
    total = WeightedSum(uniform.per_client)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        weights, _ = uniform.update((), view)
        mean = view.updates.weighted_sum(weights, total)
        received, key = view.received.shared, view.key
        assert key is not None
        if not steps:
            return Aggregate(mean, {}), state
        teachers = jax.tree.map(jnp.add, received, view.updates.tensors())
        round = view.received.round

        def step(number: Array, progress: tuple[Variables, PyTree]) -> tuple[Variables, PyTree]:
            student, moments = progress
            batch = problem.public_batch(view.public, number * batch_size, batch_size)
            own_key = jax.random.fold_in(key, number)
            run = lambda model: problem.run(model, batch, round, own_key, is_training=False)[0].logits  # noqa: E731
            logits = jax.vmap(run)(teachers)

            def loss(params: PyTree) -> tuple[Array, Variables]:
                outputs, new = problem.run(student | {"params": params}, batch, round, own_key)
                return jnp.mean(ensemble_losses(logits, weights, outputs.logits, scheme, temperature)), new

            gradient, new = jax.grad(loss, has_aux=True)(student["params"])
            rate = cosine_rate(learning_rate, number, steps)
            params, moments = take_step(student["params"], gradient, moments, rate, clip)
            return {"params": params, **new}, moments

        start = tree.add(received, mean)
        student, _ = jax.lax.fori_loop(0, steps, step, (start, _ADAM.init(start["params"])))
        return Aggregate(tree.subtract(student, received), {}), state

    return Aggregator(lambda shared, num_clients: (), update, "tensors", (total,), runs_model=True)


_ADAM = optax.scale_by_adam()


def cosine_rate(learning_rate: float, number: Array, steps: int) -> Array:
    """The learning rate of a step, from the whole in step 0 to 0 after the last."""
    return learning_rate * (1 + jnp.cos(jnp.pi * number / steps)) / 2


def take_step(
    params: PyTree, gradient: PyTree, moments: PyTree, rate: Array | float, clip: float
) -> tuple[PyTree, PyTree]:
    """A step of Adam on a clipped gradient: (new parameters, new moments)."""
    clipped = tree.scale(jnp.minimum(1, clip / (tree.norm(gradient) + _STEADY)), gradient)
    directions, moments = _ADAM.update(clipped, moments, params)
    return optax.apply_updates(params, tree.scale(-rate, directions)), moments


def ensemble_losses(
    teachers: Array, weights: Array, logits: Array, scheme: Scheme = "logits", temperature: float = 1.0
) -> Array:
    """The loss of every example; see `ensemble_distillation`.

    Args:
        teachers: Logits of the models, [cohort, batch, ..., class].
        weights: Weights of the models that sum to one, [cohort].
        logits: Logits of the student, [batch, ..., class].
        scheme: As in `ensemble_distillation`.
        temperature: As in `ensemble_distillation`.
    """
    own = jax.nn.log_softmax(logits / temperature)
    gap = lambda target: jnp.sum(jax.scipy.special.xlogy(target, target) - target * own, axis=-1)  # noqa: E731
    return SCHEMES[scheme](teachers, weights, temperature, gap)


def _average(stack: Array, weights: Array) -> Array:
    return jnp.tensordot(weights.astype(stack.dtype), stack, axes=1, precision=jax.lax.Precision.HIGHEST)


SCHEMES: Mapping[Scheme, Callable[[Array, Array, float, Callable[[Array], Array]], Array]] = {
    "logits": lambda teachers, weights, heat, gap: gap(jax.nn.softmax(_average(teachers, weights) / heat)),
    "probabilities": lambda teachers, weights, heat, gap: gap(_average(jax.nn.softmax(teachers), weights)),
    "losses": lambda teachers, weights, heat, gap: _average(jax.vmap(gap)(jax.nn.softmax(teachers / heat)), weights),
}
