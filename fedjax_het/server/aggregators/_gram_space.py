"""The weighted mean of updates that are edited by their inner products alone.

FedLD, FedMGC's correction and FedGH replace each update by a combination of all of them, and average. The
coefficients depend on inner products alone. So the stack is read twice: once for its Gram matrix, m x m, and
once for the single combination at the end; no edited update is ever formed.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.server.weightings import WeightingOrName, resolve_weighting
from fedjax_het.types import Aggregate, Array, Gram, PyTree, ServerView
from fedjax_het.validation import CountOrZero, validate_arguments

GramEdit = Callable[..., Gram]
"""(Gram matrix, is_present, *extra inputs) -> C: client i's edited update is sum_j C_ij u_j.

All in float64. Extra inputs are arrays that the server knows, such as losses or ids."""

Scope = Literal["model", "tensor"]
Buffers = Literal["weighted_mean", "keep_server", "in_vector"]
StackDtype = Literal["float32", "bfloat16"]


@validate_arguments
def gram_space_mean(
    edit: GramEdit,
    weighting: WeightingOrName = "samples",
    *,
    extra_inputs: Callable[[ServerView], tuple[Array, ...]] = lambda view: (),
    scope: Scope = "model",
    buffers: Buffers = "weighted_mean",
    stack: StackDtype = "float32",
    warmup_mean_rounds: CountOrZero = 0,
) -> Aggregator:
    """The weighted mean of edited updates: u = sum_i p_i sum_j C_ij u_j, with C = edit(Gram matrix, ...).

    Float32 updates cost little: measured against float64, 3e-7 of the largest entry at most on the golden stacks,
    singular ones among them, and a singular value of 1e-5 of the largest is seen to 1.3e-5 of itself (CPU and GPU,
    where float64 is at hand).

    Args:
        edit: see `GramEdit`.
        weighting: of p_i, "samples", "uniform" or any Weighting.
        extra_inputs: the inputs of the edit besides the Gram matrix and is_present, such as the reported losses.
        scope: one vector per client ("model"), or each parameter tensor by itself ("tensor").
        buffers: what happens to collections besides params (batch statistics): "weighted_mean"; "keep_server", as the
            server has them; or "in_vector", edited along with the parameters.
        stack: "float32" | "bfloat16": what is edited is sent and stacked in half the bytes, products are added in
            float32; measured likewise, 9e-3 of the largest entry at most, and a singular value of a hundredth of the
            largest is seen to 3e-3 of itself, one of a thousandth to 20 %.
        warmup_mean_rounds: so many first rounds take the plain weighted mean.

    Raises:
        InputError: for an unknown scope, buffers, stack or weighting.
    """
    weighting = resolve_weighting(weighting)

    def is_edited(path: str) -> bool:
        return buffers == "in_vector" or tree.is_parameter(path)

    def gram_edit(gram: Array, view: ServerView) -> Array:
        is_plain = view.received.round < warmup_mean_rounds
        return jnp.where(is_plain, jnp.eye(len(gram)), edit(gram, view.is_present, *extra_inputs(view)))

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        edited = view.updates.select(is_edited).astype(stack)
        rest = view.updates.select(lambda path: not is_edited(path))
        weights, state = weighting.update(state, view)
        if scope == "model":
            combined = edited.combine(weights @ gram_edit(edited.gram(), view))
        else:  # the tensors share one program
            edited = edited.by_tensor()
            combined = edited.combine(jax.vmap(lambda gram: weights @ gram_edit(gram, view))(edited.gram()))
        kept = weights if buffers == "weighted_mean" else jnp.zeros_like(weights)
        return Aggregate({**rest.weighted_sum(kept, weighting.per_client), **combined}, {}), state

    is_one_vector = scope == "model" and buffers != "in_vector"
    return Aggregator(weighting.init, update, gram_edit if is_one_vector else None)
