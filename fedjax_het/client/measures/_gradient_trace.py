"""The trace of the empirical Fisher information of a trained model (FedAS)."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Measure, Problem
from fedjax_het.types import Array, Batch, ClientView, Params
from fedjax_het.validation import Count, validate_arguments


@validate_arguments
def gradient_trace(batch_size: Count, per: Literal["batch", "example"] = "batch") -> Measure:
    """[]: the sum of squared gradients of the objective at view.local, in evaluation mode.

        sum_b |g_b|^2,   g_b: the gradient of the mean over batch b, or of example b

    Args:
        batch_size: Batch size of local training.
        per: "batch", which depends on the batch size (FedAS's code), or "example".

    References:
        Yang, Huang and Ye, FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024; code
        xiyuanyang45/FedAS.
    """

    def measure(problem: Problem, view: ClientView) -> Array:
        params, state = tree.split_params(view.local)

        def square(batch: Batch, number: Array) -> Array:
            def loss(params: Params) -> Array:
                key = jax.random.fold_in(make_key(0), number)
                forward = problem.forward(params, state, batch, view, key, is_training=False)
                return problem.sum_terms(forward)

            return tree.squared_norm(jax.grad(loss)(params))

        def add(total: Array, batch: Batch, number: Array) -> Array:
            return total + square(batch, number).astype(total.dtype)

        size = batch_size if per == "batch" else 1
        return problem.fold(view.data, view.data.train, size, add, jnp.zeros((), float))

    return measure
