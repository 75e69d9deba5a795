"""Losses for sequences of tasks: LwF, TARGET and GLFC, and GLFC's exemplars and sign of a new task."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.client.measures._losses import _entropies
from fedjax_het.client.objectives._continual import compensated_loss, distillation_over, losses_over
from fedjax_het.client.task_memory import herd, is_new_task
from tests.golden.cases import Case, covers


def first_classes(case: Case, width: int) -> jnp.ndarray:
    """Whether each class of the head is known."""
    return jnp.arange(width) < case.meta["known_classes"]


def widen(logits: np.ndarray, width: int) -> jnp.ndarray:
    """The logits of a head that has not grown yet, with others of the classes that the old model does not know."""
    return jnp.pad(jnp.asarray(logits), ((0, 0), (0, width - logits.shape[1])), constant_values=3.0)


@covers("continual", "lwf_loss_*")
def learning_without_forgetting(case: Case):
    logits, labels, settings = jnp.asarray(case["logits"]), jnp.asarray(case["labels"]), case.meta
    old, target = first_classes(case, logits.shape[1]), widen(case["old_logits"], logits.shape[1])

    def parts(logits):
        of_old = distillation_over(logits, target, old, settings["temperature"])
        return jnp.mean(losses_over(logits, labels, ~old)), jnp.mean(of_old)

    def loss(logits):
        new, known = parts(logits)
        return new + settings["lam"] * known

    value, gradient = jax.value_and_grad(loss)(logits)
    for name, ours in zip(("loss_new", "loss_old"), parts(logits), strict=True):
        yield case.compare(name, ours)
    yield case.compare("loss", value)
    yield case.compare("grad", gradient)


@covers("continual", "target_loss_*")
def target(case: Case):
    """Its synthetic inputs are made by the server, which the package does not do; the loss is that of LwF."""
    logits, labels, settings = jnp.asarray(case["logits"]), jnp.asarray(case["labels"]), case.meta
    old, teacher = first_classes(case, logits.shape[1]), widen(case["teacher_logits"], logits.shape[1])

    def loss(logits, synthetic):
        known = distillation_over(synthetic, teacher, old, settings["temperature"])
        return jnp.mean(losses_over(logits, labels, ~old)) + settings["kd"] * jnp.mean(known)

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(logits, jnp.asarray(case["synthetic_logits"]))
    yield case.compare("loss", value)
    yield case.compare("grad", gradients[0])
    yield case.compare("grad_synthetic", gradients[1])


@covers("continual", "glfc_loss_*")
def compensation(case: Case):
    logits, labels = jnp.asarray(case["logits"]), jnp.asarray(case["labels"])
    old = jnp.isin(jnp.arange(logits.shape[1]), jnp.asarray(case["learned_classes"]))
    arguments = labels, jnp.ones(len(labels)), old, ~old, widen(case["old_logits"], logits.shape[1])
    value, gradient = jax.value_and_grad(compensated_loss)(logits, *arguments)
    yield case.compare("loss", value)
    yield case.compare("grad", gradient)
    case.excuse("weight", "it shows in the loss")


@covers("continual", "glfc_entropy")
def sign_of_a_new_task(case: Case):
    case.meta.confirm(eps=1e-5)
    means = jnp.mean(_entropies(jnp.asarray(case["logits"]), None), axis=1)
    yield case.compare("mean_entropy", means)
    yield case.compare("signal", is_new_task(means, jnp.pad(means[:-1], (1, 0)), case.meta["threshold"]))


@covers("continual", "herding_*")
def herding(case: Case):
    features = jnp.asarray(case["features"])
    others = jnp.full((3, features.shape[1]), 0.1)
    is_member = jnp.arange(len(features) + 3) < len(features)
    yield case.compare("chosen", herd(jnp.concatenate([features, others]), is_member, len(case["chosen"])))
    case.excuse("normalised", "it shows in the choices")
