"""The record of a diagnostic, and what diagnostics are made of: client models, their losses, products of updates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.float64 import run_in_required_precision
from fedjax_het.labels import cross_entropies, mean_per_example
from fedjax_het.types import Array, Batch, Context, Named, PyTree, RoundSnapshot, Rows, Variables

BATCH = 256


class Quantity(NamedTuple):
    """The display of one quantity of a diagnostic in reports; one without such a record is shown by its name and shape.

    Attributes:
        title: What it is called.
        across: What the columns of a matrix or the entries of a vector count, "clients", "classes" or another word.
        x_label: Of a matrix.
        y_label: Of a matrix.
        scale: Of the colours of a matrix.
        unit: Of the colours of a matrix.
        parts: What the entries of a vector are called, where it is several scalars.
    """

    title: str
    across: str = "clients"
    x_label: str = "client"
    y_label: str = "client"
    scale: Literal["level", "signed", "amount"] = "level"
    unit: str = "loss"
    parts: tuple[str, ...] = ()


class ImagePanel(NamedTuple):
    """One of the pictures that a diagnostic shows of each image.

    Attributes:
        title: What stands above it, before the number of the image.
        image: The quantity that is drawn, [clients, images, height, width, channel].
        outlines: Quantities [clients, images, height, width] whose outlines are drawn on it: the true one and, dashed,
            the found one.
    """

    title: str
    image: str
    outlines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnostic:
    """A diagnostic: what it measures in a round, and how reports show it.

    Attributes:
        measure: (problem, RoundSnapshot) -> named arrays, a pure function that is compiled with the round.
        title: Of its figures.
        caption: What there is to see, with the paper that has it.
        quantities: How its arrays are shown, by name.
        panels: The pictures of each image, for one that shows images; its arrays have "is_image" [clients, images].
            With several, black and white are the same in all.
    """

    measure: Callable[[Any, RoundSnapshot], Named]
    title: str
    caption: str
    quantities: Mapping[str, Quantity] = field(default_factory=lambda: MappingProxyType({}))
    panels: tuple[ImagePanel, ...] = ()

    def __call__(self, problem: Any, snapshot: RoundSnapshot) -> Named:
        return self.measure(problem, snapshot)


def client_models(snapshot: RoundSnapshot) -> Variables:
    """The clients' trained models, leaves [cohort, ...]: shared leaves as it sent them, its own as it keeps them."""
    received = snapshot.view.received.shared
    return tree.merge(tree.add(received, snapshot.view.updates.tensors()), snapshot.personal)


def global_models(snapshot: RoundSnapshot) -> Variables:
    """The server's new model with each client's own leaves, [cohort, ...]."""
    return tree.merge(tree.broadcast(snapshot.shared, snapshot.view.cohort.shape[0]), snapshot.personal)


def encoded(problem, variables: Variables, snapshot: RoundSnapshot, batch: Batch) -> tuple[Array, Named]:
    """(features, extras) in evaluation mode."""
    context = Context(batch.mask, snapshot.view.received.round, snapshot.key, False)
    return problem.model.encode(variables, batch.inputs, context)[0]


def logits(problem, variables: Variables, snapshot: RoundSnapshot, batch: Batch) -> Array:
    """[batch, class], or [batch, height, width, class], in evaluation mode."""
    features, _ = encoded(problem, variables, snapshot, batch)
    return problem.model.classify(variables["params"], features)


def total_loss(problem, variables: Variables, snapshot: RoundSnapshot, batch: Batch) -> Array:
    """[], the sum over the batch's examples: cross-entropies in evaluation mode; of masks and sequences means."""
    outputs = logits(problem, variables, snapshot, batch)
    losses = cross_entropies(outputs, batch.labels)
    return jnp.sum(jnp.where(batch.mask > 0, mean_per_example(losses, batch.labels), 0))


def over_rows(
    problem, snapshot: RoundSnapshot, rows: Rows, add: Callable[[PyTree, Batch, Array], PyTree], total: PyTree
) -> PyTree:
    """total = add(total, batch, number) for batch after batch of one client's row, divided as in evaluation."""
    return problem.fold(snapshot.data, rows, BATCH, add, total, is_even=True)


def mean_loss(problem, variables: Variables, snapshot: RoundSnapshot, rows: Rows) -> Array:
    """[] over the examples of one client's row; 0 where there is none."""

    def add(total: Array, batch: Batch, number: Array) -> Array:
        return total + total_loss(problem, variables, snapshot, batch)

    return over_rows(problem, snapshot, rows, add, jnp.zeros((), float)) / jnp.maximum(rows.count, 1)


def from_gram(measure: Callable[..., Named], snapshot: RoundSnapshot, *others: PyTree) -> Named:
    """measure(Gram matrix of the updates' parameters in float64, *others), in the process's own precision."""
    stack = snapshot.view.updates.select(tree.is_parameter)
    return run_in_required_precision(lambda: measure(stack.gram(), *others))
