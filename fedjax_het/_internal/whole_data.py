"""Passes over all of a client's training examples."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.problem import Problem
from fedjax_het.types import Array, Batch, ClientView, Params, Variables


def mean_objective(problem: Problem, view: ClientView, variables: Variables, batch_size: int) -> Array:
    """The objective over all of the client's training examples, in evaluation mode; 0 without examples."""
    params, state = tree.split_params(variables)
    rows = view.data.train

    def add(total: Array, batch: Batch, number: Array) -> Array:
        key = jax.random.fold_in(make_key(0), number)
        forward = problem.forward(params, state, batch, view, key, is_training=False)
        return total + jnp.sum(batch.mask) * problem.sum_terms(forward)

    total = problem.fold(view.data, rows, batch_size, add, jnp.zeros((), float))
    return total / jnp.maximum(rows.count, 1)


def mean_gradient(problem: Problem, view: ClientView, batch_size: int) -> Params:
    """Gradient of the objective over all of the client's training examples at view.start.

    The mean over examples is computed batch by batch; the collections other than params do not change.
    """
    params, state = tree.split_params(view.start)
    rows = view.data.train

    def add(total: Params, batch: Batch, number: Array) -> Params:
        _, gradient = problem.value_and_grad(params, state, batch, view, jax.random.fold_in(make_key(0), number))
        return tree.add(total, tree.scale(jnp.sum(batch.mask), gradient))

    total = problem.fold(view.data, rows, batch_size, add, tree.zeros_like(params))
    return tree.scale(1.0 / jnp.maximum(rows.count, 1), total)
