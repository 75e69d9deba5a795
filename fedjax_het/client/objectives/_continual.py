"""Losses for sequences of tasks with new classes: LwF and GLFC."""

import jax
import jax.numpy as jnp
import optax

from fedjax_het import tree
from fedjax_het.algorithm import Term
from fedjax_het.client.objectives._supervised import masked_mean
from fedjax_het.labels import check_classes, cross_entropies, mean_over_labels
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Array
from fedjax_het.validation import NonNegative, Positive, validate_arguments


@validate_arguments
def learning_without_forgetting(lam: NonNegative = 3.0, temperature: Positive = 2.0) -> Term:
    """Cross-entropy over the classes of this task, and distillation of the old model over those of earlier tasks (LwF).

        1/B sum_b -log softmax_{c in new}(z_b)[y_b] + lam 1/B sum_b - sum_{c in old} q_c log p_c
        q = softmax_old(z^old_b / T) of the model at the end of the last task, p = softmax_old(z_b / T)

    old: the classes of earlier phases of the data; new: the other classes of this phase. An example of an old class
    competes with the new ones. In the first phase the second sum is 0. Data that never change have one phase.
    Shapes: as `cross_entropy`; the mean is over the labels of all pixels or positions, but padding.
    Reads: outputs.logits, received.phase, published["last_task"] (`server.tasks.model_of_last_task`). Cost: one more
    forward pass per step.

    Args:
        lam: Weight of the distillation (3; 25 elsewhere in the code).
        temperature: T (2). There is no factor T^2.

    References:
        Li and Hoiem, Learning without Forgetting, TPAMI 2018. arXiv:1606.09282; code
        zj-jayzhang/Federated-Class-Continual-Learning, methods/lwf.py.
    """

    def learning_without_forgetting(forward: ForwardPass) -> Array:
        phase, logits, labels = forward.view.received.phase, forward.outputs.logits, forward.batch.labels
        check_classes(labels)
        if phase is None:
            return mean_over_labels(cross_entropies(logits, labels), labels, forward.batch.mask)
        of_new = losses_over(logits, labels, phase.has_class & ~phase.had_class)
        of_old = distillation_over(logits, logits_of_old_model(forward), phase.had_class, temperature)
        return mean_over_labels(of_new + lam * of_old, labels, forward.batch.mask)

    return learning_without_forgetting


def logits_of_old_model(forward: ForwardPass) -> Array:
    """The logits of the published model of the last task on the same batch, in evaluation mode."""
    old = tree.merge(forward.view.start, forward.view.received.published["last_task"])
    params, state = tree.split_params(old)
    again = forward.problem.forward(params, state, forward.batch, forward.view, forward.key, is_training=False)
    return jax.lax.stop_gradient(again.outputs.logits)


def losses_over(logits: Array, labels: Array, classes: Array) -> Array:
    """-log softmax(z)[y] over some classes, bool [class], and the true one: logits [..., class] -> [...]."""
    is_true = jax.nn.one_hot(labels, logits.shape[-1], dtype=bool)
    return -jnp.sum(jnp.where(is_true, _log_softmax(logits, classes | is_true), 0), axis=-1)


def distillation_over(logits: Array, target: Array, classes: Array, temperature: float) -> Array:
    """- sum_c q_c log p_c over some classes, bool [class], of softmaxes at a temperature; 0 without any: [...]."""
    own, wanted = (_log_softmax(scores / temperature, classes) for scores in (logits, target))
    return -jnp.sum(jnp.where(classes, jnp.exp(wanted) * own, 0), axis=-1)


def _log_softmax(logits: Array, classes: Array) -> Array:
    never = jnp.finfo(logits.dtype).min / 2  # finite, so that no gradient is NaN
    return jax.nn.log_softmax(jnp.where(classes, logits, never))


def compensated_loss(logits: Array, labels: Array, mask: Array, old: Array, new: Array, old_logits: Array) -> Array:
    """Binary cross-entropy whose weights compensate for what is learned at different paces (GLFC).

        L = mean_{b, c} w_b BCE(z_bc, 1[c = y_b]);   1/2 L + 1/2 mean_{b, c} BCE(z_bc, t_bc) if there are old classes
        w_b = g_b / (mean of g over the examples of the batch of old classes, or over the others),  1 without old ones
        g_b = 1 - sigmoid(z_{b y_b}), constant;   t_bc = sigmoid(z^old_bc) for old classes c, 1[c = y_b] for others

    Args:
        logits: [batch, class].
        labels: [batch].
        mask: [batch].
        old: [class] bool, the classes of earlier tasks.
        new: [class] bool, those of this task; further classes are in no mean.
        old_logits: [batch, class], of the model of earlier tasks.
    """
    is_true, has_old = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype), jnp.any(old)
    gap = jax.lax.stop_gradient(1 - jax.nn.sigmoid(jnp.sum(is_true * logits, axis=-1)))

    def relative_to(group: Array) -> Array:
        return gap / tree.positive_or_one(masked_mean(gap, mask * group))

    weights = jnp.where(old[labels], relative_to(old[labels]), relative_to(~old[labels]))
    weights = jnp.where(has_old, weights, 1)
    counted = mask[:, None] * (old | new)

    def mean(values: Array) -> Array:
        return jnp.sum(jnp.where(counted > 0, values, 0)) / tree.positive_or_one(jnp.sum(counted))

    hard = mean(weights[:, None] * optax.sigmoid_binary_cross_entropy(logits, is_true))
    targets = jnp.where(old, jax.nn.sigmoid(old_logits), is_true)
    soft = mean(optax.sigmoid_binary_cross_entropy(logits, targets))
    return jnp.where(has_old, (hard + soft) / 2, hard)
