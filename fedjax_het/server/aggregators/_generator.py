"""A generator of features that the server trains to be recognized by the clients' heads (FedGen)."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.errors import InputError
from fedjax_het.generation import generate, init_generator, join_running, split_running
from fedjax_het.labels import cross_entropies
from fedjax_het.server.summaries import class_outline, head
from fedjax_het.types import Aggregate, Array, Params, PyTree, ServerView, Variables
from fedjax_het.validation import Count, Fraction, NonNegative, validate_arguments

LabelWeights = Literal["example", "batch"]


@validate_arguments
def with_generator(
    aggregator: Aggregator,
    *,
    hidden: Count = 256,
    noise: Count = 32,
    steps: Count = 40,
    batch_size: Count = 128,
    learning_rate: NonNegative = 3e-4,
    weight_decay: NonNegative = 0.01,
    decay: Fraction = 0.98,
    alpha: NonNegative = 1.0,
    eta: NonNegative = 1.0,
    beta: NonNegative = 0.0,
    label_weights: LabelWeights = "example",
) -> Aggregator:
    """An aggregator that also trains a generator of features by the clients' heads.

    Each step draws classes that a client of the round has, uniformly, and minimizes `generator_loss` by Adam, whose
    state is kept between rounds.
    Reads: reports["labels"], the clients' numbers of examples per class, [class]; received.base["generator"]
    (`models.with_generator`), which it updates.

    Args:
        aggregator: Combines the updates.
        hidden: As in `models.with_generator`.
        noise: As in `models.with_generator`.
        steps: The number of steps per round (40).
        batch_size: The number of generated examples per step (128).
        learning_rate: The learning rate of Adam (3e-4; 1e-4 for MNIST).
        weight_decay: Added to the gradient (.01).
        decay: Factor of the learning rate per round (.98).
        alpha: See `generator_loss`.
        eta: See `generator_loss`.
        beta: See `generator_loss`.
        label_weights: See `generator_loss`.

    Raises:
        InputError: When traced: the head is personal, or the model has no generator.

    References:
        Zhu, Hong and Zhou, Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021.
        arXiv:2105.10056; code zhuangdizhu/FedGen.
    """
    optimizer = generator_optimizer(weight_decay)

    def init(shared: Variables, num_clients: int) -> PyTree:
        num_classes, num_features = class_outline(shared).shape
        shapes = jax.eval_shape(lambda: init_generator(make_key(0), num_classes, num_features, hidden, noise))
        return aggregator.init(shared, num_clients), optimizer.init(split_running(tree.zeros_like(shapes))[0])

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        inner, moments = state
        aggregate, inner = aggregator.update(problem, inner, view)
        received, shared, key = _find_generator(view), view.received.shared, view.key
        assert key is not None
        moved = view.updates.select(lambda path: path.startswith("params/classifier/")).tensors()
        heads = jax.tree.map(jnp.add, head(shared), moved["params"]["classifier"])
        counts = jnp.where(view.is_present[:, None], view.uploads.reports["labels"], 0)
        total = jnp.sum(counts, axis=0)
        weights = (counts / tree.positive_or_one(total)).T

        def classify(head: Params, features: Array) -> Array:
            return problem.model.classify({**shared["params"], "classifier": head}, features)

        def step(number: Array, progress: GeneratorTraining) -> GeneratorTraining:
            label_key, noise_key = jax.random.split(jax.random.fold_in(key, number))
            labels = jax.random.categorical(label_key, jnp.where(total > 0, 0.0, -jnp.inf), shape=(batch_size,))
            inputs = jax.random.uniform(noise_key, (batch_size, noise))

            def loss(features: Array) -> Array:
                teachers, student = jax.vmap(classify, (0, None))(heads, features), classify(head(shared), features)
                return generator_loss(
                    features, inputs, teachers, student, labels, weights, alpha, eta, beta, label_weights
                )

            rate = learning_rate * decay**view.received.round
            return train_generator(optimizer, rate, loss, progress, inputs, labels)

        start = GeneratorTraining(*split_running(received["network"]), moments)
        end = jax.lax.fori_loop(0, steps, step, start)
        new = {"network": join_running(end.trained, end.running), "labels": (total > 0).astype(total.dtype)}
        change = jax.tree.map(lambda after, before: (after - before).astype(before.dtype), new, received)
        base = (aggregate.base or tree.zeros_like(view.received.base)) | {"generator": change}
        return aggregate._replace(base=base), (inner, end.moments)

    reads = "gram" if aggregator.reads == "gram" else "tensors"
    return aggregator._replace(init=init, update=update, reads=reads)


def _find_generator(view: ServerView) -> PyTree:
    if "generator" not in view.received.base:
        raise InputError(
            "the aggregator trains a generator, which the model does not have. Add adapt=models.with_generator() to "
            "the Algorithm."
        )
    return view.received.base["generator"]


def generator_optimizer(weight_decay: float) -> optax.GradientTransformation:
    """Adam with decay that is added to the gradient, before the learning rate."""
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.scale_by_adam())


class GeneratorTraining(NamedTuple):
    """The trained leaves of a generator, its running statistics, and the state of the optimizer."""

    trained: PyTree
    running: PyTree
    moments: PyTree


def train_generator(
    optimizer: optax.GradientTransformation,
    rate: Array | float,
    loss: Callable[[Array], Array],
    progress: GeneratorTraining,
    noise: Array,
    labels: Array,
) -> GeneratorTraining:
    """Take one step.

    Args:
        optimizer: The optimizer, whose result is scaled by the learning rate.
        rate: The learning rate.
        loss: Features [batch, feature] -> loss.
        progress: The generator before the step.
        noise: [batch, noise].
        labels: [batch].
    """

    def evaluate(trained: PyTree) -> tuple[Array, PyTree]:
        features, running = generate(join_running(trained, progress.running), noise, labels, is_training=True)
        return loss(features), running

    gradient, running = jax.grad(evaluate, has_aux=True)(progress.trained)
    directions, moments = optimizer.update(gradient, progress.moments, progress.trained)
    return GeneratorTraining(optax.apply_updates(progress.trained, tree.scale(-rate, directions)), running, moments)


def generator_loss(
    features: Array,
    noise: Array,
    teachers: Array,
    student: Array,
    labels: Array,
    weights: Array,
    alpha: float,
    eta: float,
    beta: float,
    label_weights: LabelWeights = "example",
) -> Array:
    """The loss of generated features.

        alpha sum_i 1/B sum_b w_{y_b, i} CE(z_ib, y_b) + eta exp(-mean_{b, b'} mean (e_b - e_b')^2 mean |G_b - G_b'|)
        - beta 1/(B C) sum_b KL( softmax(sum_i w_{y_b, i} z_ib) || softmax(v_b) )

    Args:
        features: G_b, [batch, feature].
        noise: e_b, [batch, noise].
        teachers: z_ib, logits of the clients' heads, [cohort, batch, class].
        student: v_b, logits of the server's head, [batch, class].
        labels: y_b, [batch].
        weights: w, the share of each client in the examples of each class, [class, cohort].
        alpha: Weight of the clients' losses.
        eta: Weight of the diversity.
        beta: Weight of the disagreement with the server's head; 0 in all of the authors' settings.
        label_weights: "example", as above; "batch" replaces w by its mean over the batch, as in the released code,
            which multiplies arrays of different shapes.
    """
    own = weights[labels].T
    losses = cross_entropies(teachers, labels)
    used = own if label_weights == "example" else jnp.mean(own, axis=1, keepdims=True)
    recognition = jnp.sum(jnp.mean(used * losses, axis=1))
    apart = jnp.mean(jnp.square(noise[:, None] - noise[None]), axis=-1)
    distances = jnp.mean(jnp.abs(features[:, None] - features[None]), axis=-1)
    diversity = jnp.exp(-jnp.mean(apart * distances))
    ensemble = jax.nn.log_softmax(jnp.einsum("ib,ibc->bc", own, teachers, precision=jax.lax.Precision.HIGHEST))
    gaps = jnp.exp(ensemble) * (ensemble - jax.nn.log_softmax(student))
    return alpha * recognition + eta * diversity - beta * jnp.mean(gaps)
