"""Losses for sequences of tasks: LwF and TARGET."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.client.objectives._continual import distillation_over, losses_over
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
