"""What a client's features look like, class by class (FedPAC)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Measure, Problem
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Batch, ClientView, Named, Variables


class ClassStatistics(NamedTuple):
    counts: Array  # [class] examples
    means: Array  # [class, feature]; zero for a class without examples
    square: Array  # [] mean of |f|^2 over all examples


def statistics_of(features: Array, labels: Array, mask: Array, num_classes: int) -> ClassStatistics:
    """Statistics of features [batch, feature] with labels [batch]; what the mask [batch] leaves out may be anything."""
    return _averaged(_sums(features, labels, mask, num_classes))


def class_statistics(batch_size: int = 50) -> Measure:
    """ClassStatistics of the client's training examples under view.start, in evaluation mode.

    batch_size: how many at a time, nothing else.   Raises InputError where examples have not one label each.
    Xu, Tong and Huang, FedPAC, ICLR 2023.
    """
    return lambda problem, view: _measured(problem, view, view.start, batch_size)


def prototypes(batch_size: int = 50) -> Measure:
    """{"means" [class, feature], "counts" [class]} of the training examples under view.local; see class_statistics."""

    def measure(problem: Problem, view: ClientView) -> Named:
        classes = _measured(problem, view, view.local, batch_size)
        return {"means": classes.means, "counts": classes.counts}

    return measure


def _measured(problem: Problem, view: ClientView, variables: Variables, batch_size: int) -> ClassStatistics:
    rows = view.data.train
    state = {name: leaves for name, leaves in variables.items() if name != "params"}

    def sums(index: Array | int) -> ClassStatistics:
        batch = problem.batch(view.data, rows.index, rows.count, index * batch_size, batch_size)
        _check_labels(batch)
        forward = problem.forward(variables["params"], state, batch, view, jax.random.key(0), is_training=False)
        return _sums(forward.outputs.features, batch.labels, batch.mask, forward.outputs.logits.shape[-1])

    nothing = tree.zeros_like(jax.eval_shape(sums, 0))
    num_batches = -(-rows.count // batch_size)
    return _averaged(jax.lax.fori_loop(0, num_batches, lambda i, total: tree.add(total, sums(i)), nothing))


def _sums(features: Array, labels: Array, mask: Array, num_classes: int) -> ClassStatistics:
    features = jnp.where(mask[:, None] > 0, features, 0)
    member = mask[:, None] * jax.nn.one_hot(labels, num_classes, dtype=features.dtype)
    total = jnp.matmul(member.T, features, precision=jax.lax.Precision.HIGHEST)
    return ClassStatistics(jnp.sum(member, axis=0), total, jnp.sum(jnp.square(features)))


def _averaged(sums: ClassStatistics) -> ClassStatistics:
    means = sums.means / jnp.maximum(sums.counts, 1)[:, None]
    return ClassStatistics(sums.counts, means, sums.square / jnp.maximum(jnp.sum(sums.counts), 1))


def _check_labels(batch: Batch) -> None:
    if batch.labels.ndim != 1:
        raise InputError(
            f"class statistics: labels have shape {batch.labels.shape[1:]} an example; they need one label each. "
            "Take a data set for classification."
        )
