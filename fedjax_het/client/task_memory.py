"""A client's knowledge of earlier tasks: their classes, a model, and examples (GLFC)."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Memory, Problem, Term
from fedjax_het.client.objectives._continual import compensated_loss
from fedjax_het.client.objectives._supervised import count_classes
from fedjax_het.client.stored_features import store_features
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Array, Batch, ClientView, Key, Named, Params, Variables
from fedjax_het.validation import Count, NonNegative, validate_arguments

_SMALLEST = 1e-12


def is_new_task(sign: Array, last: Array, rise: float) -> Array:
    """Whether a sign of the task rose by more than `rise` over the last one, 0 at first."""
    return sign - last > rise


def present_tasks(view: ClientView, rise: float | None) -> Named:
    """The client's tasks in this round, known before it trains; see `tasks_so_far`.

    Returns:
        {"sign" []; "old", "new" [class] bool, the classes of earlier tasks and the others of this one; "model", the
        one with which this task began}.
    """
    before, phase = view.memory["tasks"], view.received.phase
    if rise is None:
        sign, rise = (0.0 if phase is None else phase.number), 0.0
    else:
        sign = view.answers["entropy"]
    sign = jnp.asarray(sign, before["sign"].dtype)
    is_new = is_new_task(sign, before["sign"], rise)
    old = before["old"] | (before["new"] & is_new)
    is_here = count_classes(view.data, len(old)) > 0
    model = tree.where(is_new, view.start, before["model"])
    return {"sign": sign, "old": old, "new": ((before["new"] & ~is_new) | is_here) & ~old, "model": model}


@validate_arguments
def tasks_so_far(rise: NonNegative | None = None) -> Memory:
    """memory["tasks"] of `present_tasks`: the classes that the client has had, and a model of earlier tasks.

    When a task begins, the classes that the client had are old, and the received model is that of earlier tasks.
    Reads: outline/logits (`models.with_logit_shape`), and with `rise` answers["entropy"] (`measures.mean_entropy`).

    Args:
        rise: A task begins where the mean entropy of the received model's predictions rises by more than this over the
            client's last round. None: it begins with the client's first round in a phase of the data.
    """

    def init(variables: Variables) -> Named:
        none = jnp.zeros(variables["outline"]["logits"].shape[1], bool)
        return {"sign": jnp.zeros((), float), "old": none, "new": none, "model": variables}

    return Memory(init, lambda problem, view: present_tasks(view, rise))


def herd(features: Array, is_member: Array, number: int) -> Array:
    """Choose examples whose mean feature is nearest to the mean of all members, one after the other: [number].

        argmin_i | mu - (s + f_i) / (k + 1) |,   s the sum of the k chosen so far, f of length 1

    An example can be chosen again.

    Args:
        features: [n, feature].
        is_member: [n] bool.
        number: The number of examples.
    """
    units = features / jnp.maximum(jnp.linalg.norm(features, axis=1, keepdims=True), _SMALLEST)
    mean = jnp.sum(jnp.where(is_member[:, None], units, 0), axis=0) / jnp.maximum(jnp.sum(is_member), 1)

    def choose(total: Array, count: Array) -> tuple[Array, Array]:
        distances = jnp.linalg.norm(mean - (total + units) / (count + 1), axis=1)
        chosen = jnp.argmin(jnp.where(is_member, distances, jnp.inf))
        return total + units[chosen], chosen

    return jax.lax.scan(choose, jnp.zeros_like(mean), jnp.arange(number))[1]


@validate_arguments
def exemplars(per_class: Count = 20, batch_size: Count = 50) -> Memory:
    """{"inputs" [class, per_class, height, width, channel], "is_known" [class]}: examples of each class that it had.

    Those of the classes that the client has now are chosen anew by `herd`, with the features of the trained model.
    Reads: outline/images and outline/logits (`models.with_image_shape`, `models.with_logit_shape`).

    Args:
        per_class: The number of examples of each class.
        batch_size: Examples per step; does not affect the result.
    """

    def init(variables: Variables) -> Named:
        outline = variables["outline"]
        shape, num_classes = outline["images"].shape[1:], outline["logits"].shape[1]
        inputs = jnp.zeros((num_classes, per_class, *shape), outline["images"].dtype)
        return {"inputs": inputs, "is_known": jnp.zeros(num_classes, bool)}

    def update(problem: Problem, view: ClientView) -> Named:
        before, rows = view.memory["exemplars"], view.data.train
        stored = store_features(problem, view, view.local, batch_size)
        num_classes = len(before["is_known"])
        is_member = (stored.labels == jnp.arange(num_classes)[:, None]) & stored.is_example
        places = jax.lax.map(lambda members: herd(stored.features, members, per_class), is_member)
        size = num_classes * per_class
        chosen = problem.batch(
            view.data, jnp.asarray(rows.index)[places.reshape(-1)], jnp.asarray(size), 0, size
        ).inputs
        is_here = jnp.any(is_member, axis=1)
        inputs = chosen.reshape(before["inputs"].shape).astype(before["inputs"].dtype)
        return {
            "inputs": jnp.where(tree.add_axes(is_here, inputs.ndim), inputs, before["inputs"]),
            "is_known": before["is_known"] | is_here,
        }

    return Memory(init, update)


def draw_exemplars(stored: Named, classes: Array, key: Key, number: int) -> Batch:
    """Draw examples of some classes, bool [class], from `exemplars`; the mask is 0 if there are none."""
    is_chosen = classes & stored["is_known"]
    class_key, place_key = jax.random.split(key)
    labels = jax.random.categorical(class_key, jnp.where(is_chosen, 0.0, -jnp.inf), shape=(number,))
    places = jax.random.randint(place_key, (number,), 0, stored["inputs"].shape[1])
    inputs = stored["inputs"][labels, places]
    return Batch(inputs, labels, jnp.broadcast_to(jnp.any(is_chosen), (number,)).astype(inputs.dtype))


@validate_arguments
def compensated_cross_entropy(replay_size: Count = 20, rise: NonNegative | None = None) -> Term:
    """Binary cross-entropy of every class, on the batch and on examples of earlier tasks (GLFC's compensated loss).

    See `objectives._continual.compensated_loss`; the batch is extended by draws of `exemplars` of old classes.
    Shapes: logits [batch, class] with labels [batch].
    Reads: outputs.logits, memory["tasks"] (`tasks_so_far`), memory["exemplars"]. Cost: one more forward pass per
    step, and two of the examples of earlier tasks.

    Args:
        replay_size: The number of examples of earlier tasks per step.
        rise: As in `tasks_so_far`.
    """

    def compensated_cross_entropy(forward: ForwardPass) -> Array:
        view, tasks = forward.view, present_tasks(forward.view, rise)
        new_key, old_key, draw_key = jax.random.split(forward.key, 3)
        replayed = draw_exemplars(view.memory["exemplars"], tasks["old"], draw_key, replay_size)

        def run(params: Params, state: Variables, batch: Batch, key: Key, is_training: bool) -> Array:
            return forward.problem.forward(params, state, batch, view, key, is_training=is_training).outputs.logits

        again = run(forward.params, forward.state, replayed, new_key, True)
        params, state = tree.split_params(tasks["model"])
        known = [run(params, state, batch, old_key, False) for batch in (forward.batch, replayed)]
        return compensated_loss(
            jnp.concatenate([forward.outputs.logits, again]),
            jnp.concatenate([forward.batch.labels, replayed.labels.astype(forward.batch.labels.dtype)]),
            jnp.concatenate([forward.batch.mask, replayed.mask]),
            tasks["old"],
            tasks["new"],
            jax.lax.stop_gradient(jnp.concatenate(known)),
        )

    return compensated_cross_entropy
