"""The gradient of the head of the received model over a client's examples (FedIIR)."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Measure, Problem
from fedjax_het.client.objectives._regularizers import gradient_of_head
from fedjax_het.types import Array, Batch, ClientView, Named
from fedjax_het.validation import Count, validate_arguments


@validate_arguments
def head_gradient(batch_size: Count, per: Literal["batch", "sample", "client"] = "batch") -> Measure:
    """Gradient of the cross-entropy with respect to the head over all of the client's batches at view.start.

        {"total": sum_b a_b g_b, "weight": sum_b a_b}          the server divides the sums of both over clients

    A client without examples gives zeros. The pass is a training pass, like those it is compared with, but updates
    nothing.
    Shapes: total as params/classifier (shared leaves), weight [].

    Args:
        batch_size: Batch size of local training.
        per: Unit with equal weight in the mean over clients. "batch": a_b = 1, also for a short last batch (code).
            "sample": a_b is its number of examples. "client": total is the mean over the client's examples, weight is
            1.

    Raises:
        InputError: The value of `per` is unknown.

    References:
        Guo et al., FedIIR, ICML 2023; official code YamingGuo98/FedIIR, domainbed/algorithms.py, mean_grad.
    """

    def measure(problem: Problem, view: ClientView) -> Named:
        params, state = tree.split_params(view.start)

        def add(sums: Named, batch: Batch, number: Array) -> Named:
            forward = problem.forward(params, state, batch, view, jax.random.fold_in(make_key(0), number))
            share = jnp.asarray(1.0 if per == "batch" else jnp.sum(batch.mask), float)
            total = tree.add(sums["total"], tree.scale(share, gradient_of_head(forward)))
            return {"total": total, "weight": sums["weight"] + share}

        nothing = tree.zeros_like(view.received.shared["params"].get("classifier", {}))
        begin = {"total": nothing, "weight": jnp.zeros((), float)}
        sums = problem.fold(view.data, view.data.train, batch_size, add, begin)
        return tree.scale(1.0 / jnp.maximum(sums["weight"], 1.0), sums) if per == "client" else sums

    return measure
