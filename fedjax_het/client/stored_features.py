"""The features of all training examples of a client, and votes of the nearest ones (kNN-Per)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het._internal.random_order import draw_bits, sort_by_bits
from fedjax_het.algorithm import Personalization, Problem
from fedjax_het.client.measures import Examples, loss_of
from fedjax_het.errors import InputError
from fedjax_het.labels import check_classes
from fedjax_het.types import Array, Batch, ClientView, Key, Variables
from fedjax_het.validation import Count, Fraction, PositiveFraction, validate_arguments

_GRID = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8, 0.1, 0.9, 0.0, 1.0)  # ties go to the first


class StoredFeatures(NamedTuple):
    """Features of examples with one label each; the last entries are padding."""

    features: Float[Array, "capacity feature"]
    labels: Int[Array, "capacity"]
    is_example: Bool[Array, "capacity"]


def store_features(problem: Problem, view: ClientView, variables: Variables, batch_size: int) -> StoredFeatures:
    """The features of the client's training examples under a model, in evaluation mode.

    Args:
        problem: The client's learning problem.
        view: Its view.
        variables: All variables of the model.
        batch_size: Examples per step; does not affect the result.

    Raises:
        InputError: Features are maps, or examples do not have one label each.
    """
    rows, (params, state) = view.data.train, tree.split_params(variables)
    capacity = rows.index.shape[0]

    def compute(batch: Batch) -> Array:
        return problem.forward(params, state, batch, view, make_key(0), is_training=False).outputs.features

    check_classes(view.data.examples.labels)
    labels = view.data.examples.read_labels(rows.index)
    shape = jax.eval_shape(lambda: compute(problem.batch(view.data, rows.index, rows.count, 0, 1)))
    if len(shape.shape) != 2 or labels.ndim != 1:
        raise InputError(
            f"stored features: expected vectors and one label per example, got features of shape {shape.shape[1:]} and "
            f"labels of shape {labels.shape[1:]}. Use a model and a data set for classification."
        )

    def add(total: Array, batch: Batch, number: Array) -> Array:
        places = number * batch_size + jnp.arange(len(batch.mask))
        return total.at[jnp.where(batch.mask > 0, places, capacity)].set(compute(batch), mode="drop")

    nothing = jnp.zeros((capacity, shape.shape[1]), shape.dtype)
    features = problem.fold(view.data, rows, batch_size, add, nothing)
    return StoredFeatures(features, jnp.asarray(labels), jnp.arange(capacity) < rows.count)


def rank_randomly(key: Key, is_example: Array) -> Array:
    """[capacity]: the places of examples in a random order, padding last; they do not depend on the capacity."""
    return jnp.argsort(sort_by_bits(draw_bits(key, jnp.arange(len(is_example))), is_example))


@validate_arguments
def nearest_features(
    mix: Fraction | None = None,
    share: PositiveFraction = 1.0,
    examples: Examples = "valid",
    batch_size: Count = 50,
) -> Personalization:
    """The client's model, whose predictions are mixed with votes of its training examples.

    Of a model with `models.with_neighbours`.

    Args:
        mix: The share of the vote. None: that of 0, .1, ..., 1 with the highest accuracy on the client's examples; of
            ties, and for a client without such examples, the one nearest to .5.
        share: The share of the training examples that are stored, drawn at random.
        examples: Those on which mix is chosen.
        batch_size: Examples per step; does not affect the result.
    """

    def personalize(problem: Problem, view: ClientView, key: Key) -> Variables:
        kept = store_features(problem, view, view.start, batch_size)
        number = jnp.ceil(share * view.data.train.count)
        is_stored = kept.is_example & (rank_randomly(key, kept.is_example) < number)
        store = {"features": kept.features, "labels": kept.labels, "is_stored": is_stored}

        def mixed(mix: Array | float) -> Variables:
            own = {"neighbours": store | {"mix": jnp.asarray(mix, kept.features.dtype)}}
            return view.start | {"params": view.start["params"] | own}

        if mix is not None:
            return mixed(mix)
        grid = jnp.array(_GRID, kept.features.dtype)
        errors = loss_of(problem, view, examples, batch_size, "accuracy")
        return mixed(grid[jnp.argmin(jax.vmap(lambda mix: errors(mixed(mix)))(grid))])

    return personalize
