"""The record of a diagnostic, and its building blocks: client models, their losses, products of updates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.float64 import run_in_double
from fedjax_het.labels import example_losses, mean_per_example
from fedjax_het.types import Array, Batch, Context, Named, PyTree, RoundSnapshot, Rows, Variables

BATCH = 256


class Quantity(NamedTuple):
    """The display of a quantity of a diagnostic in reports; without a record, its name and shape are shown.

    Attributes:
        title: The title.
        across: The meaning of matrix columns or vector entries, such as "clients" or "classes".
        x_label: The x label of a matrix.
        y_label: The y label of a matrix.
        scale: The color scale of a matrix.
        unit: The unit of the color scale of a matrix.
        parts: The names of vector entries, for vectors of several scalars.
    """

    title: str
    across: str = "clients"
    x_label: str = "client"
    y_label: str = "client"
    scale: Literal["level", "signed", "amount"] = "level"
    unit: str = "loss"
    parts: tuple[str, ...] = ()


class ImagePanel(NamedTuple):
    """A panel that a diagnostic shows for each image.

    Attributes:
        title: The title, followed by the number of the image.
        image: The quantity to draw, [clients, images, height, width, channel].
        outlines: Quantities [clients, images, height, width] whose outlines are drawn on the image: the true outline
            and, dashed, the predicted one.
    """

    title: str
    image: str
    outlines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnostic:
    """A diagnostic: its measurement in a round, and its display in reports.

    Attributes:
        measure: (problem, RoundSnapshot) -> named arrays, a pure function that is compiled with the round.
        title: The title of the figures.
        caption: A description, with a reference to the paper.
        quantities: The display of arrays, by name.
        panels: The panels of each image, for diagnostics with images; their arrays include "is_image" [clients,
            images]. All panels use the same gray scale.
    """

    measure: Callable[[Any, RoundSnapshot], Named]
    title: str
    caption: str
    quantities: Mapping[str, Quantity] = field(default_factory=lambda: MappingProxyType({}))
    panels: tuple[ImagePanel, ...] = ()

    def __call__(self, problem: Any, snapshot: RoundSnapshot) -> Named:
        return self.measure(problem, snapshot)


def client_models(snapshot: RoundSnapshot) -> Variables:
    """The clients' trained models, leaves [cohort, ...]: shared leaves as sent, and personal leaves."""
    received = snapshot.view.received.shared
    return tree.merge(tree.add(received, snapshot.view.updates.tensors()), snapshot.personal)


def global_models(snapshot: RoundSnapshot) -> Variables:
    """The server's new model with each client's personal leaves, [cohort, ...]."""
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
    """[], the sum of losses over the batch in evaluation mode; with several labels per example, of means."""
    outputs = logits(problem, variables, snapshot, batch)
    losses = example_losses(outputs, batch.labels)
    return jnp.sum(jnp.where(batch.mask > 0, mean_per_example(losses, batch.labels), 0))


def over_rows(
    problem, snapshot: RoundSnapshot, rows: Rows, add: Callable[[PyTree, Batch, Array], PyTree], total: PyTree
) -> PyTree:
    """Fold total = add(total, batch, number) over the batches of a client's row, divided as in evaluation."""
    return problem.fold(snapshot.data, rows, BATCH, add, total, is_even=True)


def mean_loss(problem, variables: Variables, snapshot: RoundSnapshot, rows: Rows) -> Array:
    """[]: the mean over the examples of a client's row; 0 without examples."""

    def add(total: Array, batch: Batch, number: Array) -> Array:
        return total + total_loss(problem, variables, snapshot, batch)

    return over_rows(problem, snapshot, rows, add, jnp.zeros((), float)) / jnp.maximum(rows.count, 1)


def from_gram(measure: Callable[..., Named], snapshot: RoundSnapshot, *others: PyTree) -> Named:
    """measure(Gram matrix of the updates' parameters in float64, *others), in the default precision."""
    stack = snapshot.view.updates.select(tree.is_parameter)
    return run_in_double(lambda: measure(stack.gram(), *others))
