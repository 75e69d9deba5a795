"""Statistics of a client's features by class, class counts, and the personal head (FedPAC)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Measure, Problem
from fedjax_het.client.objectives._supervised import count_classes
from fedjax_het.errors import InputError
from fedjax_het.labels import check_classes
from fedjax_het.types import Array, Batch, ClientView, Named, Variables


class ClassStatistics(NamedTuple):
    counts: Float[Array, "*cohort class"]  # examples
    means: Float[Array, "*cohort class feature"]  # zero for a class without examples
    square: Float[Array, "*cohort"]  # mean of |f|^2 over all examples


def statistics_of(features: Array, labels: Array, mask: Array, num_classes: int) -> ClassStatistics:
    """Statistics of features [batch, feature] with labels [batch]; entries outside the mask [batch] are ignored."""
    return _average(_sums(features, labels, mask, num_classes))


def class_statistics(batch_size: int = 50) -> Measure:
    """ClassStatistics of the client's training examples under view.start, in evaluation mode.

    Args:
        batch_size: Number of examples per step; does not affect the result.

    Raises:
        InputError: Examples do not have one label each.

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


def class_moments(batch_size: int = 50) -> Measure:
    """{"counts" [class], "means" [class, feature], "covariances" [class, feature, feature]} of the training examples.

    CCVR requires them. Features are those of view.local in evaluation mode. Covariances have the divisor n - 1, and are
    0 for classes with fewer than two examples; means are 0 for classes without examples. Makes two passes over the
    examples.

    Args:
        batch_size: Number of examples per step; does not affect the result.

    Raises:
        InputError: Examples do not have one label each, or the covariances of a client have more than 2^28 entries.

    References:
        Luo et al., No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID Data, NeurIPS
        2021. arXiv:2106.05001
    """

    def measure(problem: Problem, view: ClientView) -> Named:
        classes = _measure_classes(problem, view, view.local, batch_size)
        num_classes, num_features = classes.means.shape
        if num_classes * num_features**2 > 2**28:
            raise InputError(
                f"class moments: {num_classes} covariances of {num_features} features each exceed 2^28 numbers per "
                "client. Use a model with fewer features, such as models.projected."
            )
        params, state = tree.split_params(view.local)

        def add(total: Array, batch: Batch, number: Array) -> Array:
            forward = problem.forward(params, state, batch, view, make_key(0), is_training=False)
            deviations = forward.outputs.features - classes.means[batch.labels]
            return total + scatter_by_class(deviations, batch.labels, batch.mask, num_classes)

        nothing = jnp.zeros((num_classes, num_features, num_features), classes.means.dtype)
        total = problem.fold(view.data, view.data.train, batch_size, add, nothing)
        covariances = total / jnp.maximum(classes.counts - 1, 1)[:, None, None]
        return {"counts": classes.counts, "means": classes.means, "covariances": covariances}

    return measure


def scatter_by_class(vectors: Array, labels: Array, mask: Array, num_classes: int) -> Array:
    """[class, feature, feature]: sums of v v^T over vectors [batch, feature] of each class; masked ones are zero."""
    vectors = jnp.where(mask[:, None] > 0, vectors, 0)
    member = mask[:, None] * jax.nn.one_hot(labels, num_classes, dtype=vectors.dtype)
    return jnp.einsum("bc,bd,be->cde", member, vectors, vectors, precision=jax.lax.Precision.HIGHEST)


def class_counts(problem: Problem, view: ClientView) -> Array:
    """[class]: the client's number of training examples per class, or of pixels if labels are masks (FedDisco)."""
    rows, (params, state) = view.data.train, tree.split_params(view.start)

    def logits() -> Array:
        batch = problem.batch(view.data, rows.index, rows.count, 0, 1)
        return problem.forward(params, state, batch, view, make_key(0), is_training=False).outputs.logits

    return count_classes(view.data, jax.eval_shape(logits).shape[-1])


def _measure_classes(problem: Problem, view: ClientView, variables: Variables, batch_size: int) -> ClassStatistics:
    params, state = tree.split_params(variables)
    rows = view.data.train

    def sums(batch: Batch) -> ClassStatistics:
        check_classes(batch.labels)
        if batch.labels.ndim != 1:
            raise InputError(
                f"class statistics: expected one label per example, got labels of shape {batch.labels.shape[1:]}. Use "
                "a data set for classification."
            )
        forward = problem.forward(params, state, batch, view, make_key(0), is_training=False)
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
    """The variance of a head trained on this client's n examples, and its target means.

        H[k] = q_k mu_k,   V = 1/n (mean |f|^2 - sum_k |H[k]|^2),   q_k: share of class k, mu_k: its mean feature

    Shapes: {"variance" [], "means" [class, feature]}; all zero without examples.
    """
    num_examples = jnp.maximum(jnp.sum(classes.counts), 1)
    means = classes.means * (classes.counts / num_examples)[:, None]
    spread = jnp.maximum(classes.square - jnp.sum(jnp.square(means)), 0)
    return {"variance": spread / num_examples, "means": means}


def head_statistics(problem: Problem, view: ClientView) -> Named:
    """`variance_and_means` of the client's measurements before training.

    Reads: answers["classes"] (`class_statistics`).

    References:
        Xu, Tong and Huang, FedPAC, ICLR 2023, section 4; code JianXu95/FedPAC, methods/fedpac.py.
    """
    return variance_and_means(view.answers["classes"])


def own_head(problem: Problem, view: ClientView) -> Variables:
    """The personal leaves under params/classifier of view.local; none if the head is shared."""
    shared = set(tree.paths(view.received.shared))
    return tree.partition(view.local, lambda path: path.startswith("params/classifier/") and path not in shared)[1]
