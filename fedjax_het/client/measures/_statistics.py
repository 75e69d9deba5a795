"""Statistics of a client's features by class, and what it sends of its head (FedPAC)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_het import tree
from fedjax_het.algorithm import Measure, Problem
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Batch, ClientView, Named, Variables


class ClassStatistics(NamedTuple):
    counts: Float[Array, "*cohort class"]  # examples
    means: Float[Array, "*cohort class feature"]  # zero for a class without examples
    square: Float[Array, "*cohort"]  # mean of |f|^2 over all examples


def statistics_of(features: Array, labels: Array, mask: Array, num_classes: int) -> ClassStatistics:
    """Statistics of features [batch, feature] with labels [batch]; what the mask [batch] leaves out may be anything."""
    return _average(_sums(features, labels, mask, num_classes))


def class_statistics(batch_size: int = 50) -> Measure:
    """ClassStatistics of the client's training examples under view.start, in evaluation mode.

    Args:
        batch_size: How many at a time, nothing else.

    Raises:
        InputError: Where examples have not one label each.

    References:
        Xu, Tong and Huang, FedPAC, ICLR 2023.
    """
    return lambda problem, view: _measure_classes(problem, view, view.start, batch_size)


def prototypes(batch_size: int = 50) -> Measure:
    """{"means" [class, feature], "counts" [class]} of the training examples under view.local; see class_statistics."""

    def measure(problem: Problem, view: ClientView) -> Named:
        classes = _measure_classes(problem, view, view.local, batch_size)
        return {"means": classes.means, "counts": classes.counts}

    return measure


def _measure_classes(problem: Problem, view: ClientView, variables: Variables, batch_size: int) -> ClassStatistics:
    params, state = tree.split_params(variables)
    rows = view.data.train

    def sums(batch: Batch) -> ClassStatistics:
        if batch.labels.ndim != 1:
            raise InputError(
                f"class statistics: labels have shape {batch.labels.shape[1:]} per example; they need one label each. "
                "Take a data set for classification."
            )
        forward = problem.forward(params, state, batch, view, jax.random.key(0), is_training=False)
        return _sums(forward.outputs.features, batch.labels, batch.mask, forward.outputs.logits.shape[-1])

    nothing = tree.zeros_like(jax.eval_shape(lambda: sums(problem.batch(view.data, rows.index, rows.count, 0, 1))))
    total = problem.fold(view.data, rows, batch_size, lambda total, batch, _: tree.add(total, sums(batch)), nothing)
    return _average(total)


def _sums(features: Array, labels: Array, mask: Array, num_classes: int) -> ClassStatistics:
    features = jnp.where(mask[:, None] > 0, features, 0)
    member = mask[:, None] * jax.nn.one_hot(labels, num_classes, dtype=features.dtype)
    total = jnp.matmul(member.T, features, precision=jax.lax.Precision.HIGHEST)
    return ClassStatistics(jnp.sum(member, axis=0), total, jnp.sum(jnp.square(features)))


def _average(sums: ClassStatistics) -> ClassStatistics:
    means = sums.means / jnp.maximum(sums.counts, 1)[:, None]
    return ClassStatistics(sums.counts, means, sums.square / jnp.maximum(jnp.sum(sums.counts), 1))


def variance_and_means(classes: ClassStatistics) -> Named:
    """The variance of a head trained on this client's n examples, and the means that it is trained towards.

        H[k] = q_k mu_k,   V = 1/n (mean |f|^2 - sum_k |H[k]|^2),   q_k: share of class k, mu_k: its mean feature

    Shapes: {"variance" [], "means" [class, feature]}; all zero without examples.
    """
    num_examples = jnp.maximum(jnp.sum(classes.counts), 1)
    means = classes.means * (classes.counts / num_examples)[:, None]
    spread = jnp.maximum(classes.square - jnp.sum(jnp.square(means)), 0)
    return {"variance": spread / num_examples, "means": means}


def head_statistics(problem: Problem, view: ClientView) -> Named:
    """`variance_and_means` of what the client measured before training.

    Reads: answers["classes"] (`class_statistics`).

    References:
        Xu, Tong and Huang, FedPAC, ICLR 2023, section 4; code JianXu95/FedPAC, methods/fedpac.py.
    """
    return variance_and_means(view.answers["classes"])


def own_head(problem: Problem, view: ClientView) -> Variables:
    """The leaves under params/classifier of view.local that are personal; none where the head is shared."""
    shared = set(tree.paths(view.received.shared))
    return tree.partition(view.local, lambda path: path.startswith("params/classifier/") and path not in shared)[1]
