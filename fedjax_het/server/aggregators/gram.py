"""The core of the gradient-editing aggregators.

FedLD, FedMGC's correction and FedGH replace each update by a combination of all of them, and average. What is
combined with what depends on inner products alone. So the stack is read twice: once for its Gram matrix, m x m, and
once for the single combination at the end; no revised update is ever formed.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.float64 import in_double
from fedjax_het.algorithm import Aggregator, Problem, Weighting
from fedjax_het.errors import InputError, nearest
from fedjax_het.server.aggregators.stack import combination, inner_products, packed, unpacked
from fedjax_het.server.weightings import named
from fedjax_het.types import Aggregate, Array, PyTree, ServerView, Variables
from fedjax_het.validation import CountOrZero, validate_arguments

Edit = Callable[..., Array]
"""(Gram matrix [m, m], is_present [m], *evidence) -> C [m, m]: client i's revised update is sum_j C_ij u_j. In
float64; evidence is what else the edit was promised, arrays that the server knows: losses, ids."""

SCOPES = ("model", "tensor")
BUFFERS = ("weighted_mean", "keep_server", "in_vector")
STACKS = ("float32", "bfloat16")


@validate_arguments
def edited_mean(
    edit: Edit,
    weighting: str | Weighting = "samples",
    *,
    evidence: Callable[[ServerView], tuple[Array, ...]] = lambda view: (),
    scope: str = "model",
    buffers: str = "weighted_mean",
    stack: str = "float32",
    warmup_mean_rounds: CountOrZero = 0,
) -> Aggregator:
    """The weighted mean of edited updates: u = sum_i p_i sum_j C_ij u_j, with C = edit(Gram matrix, ...).

    Shapes: leaves [cohort, ...] -> [...].
    Float32 updates cost little: measured against float64, 3e-7 of the largest entry at most on the golden stacks,
    singular ones among them, and a singular value of 1e-5 of the largest is seen to 1.3e-5 of itself (CPU and GPU,
    where float64 is at hand).
    evidence: what the edit is handed besides the Gram matrix and who is present, say the reported losses.
    scope: one vector a client ("model"), or each parameter tensor by itself ("tensor").
    buffers: what happens to collections besides params (batch statistics): averaged, kept as the server has them, or
    edited along with the parameters. warmup_mean_rounds: so many first rounds take the plain weighted mean.
    stack: "float32" | "bfloat16": what is edited is sent and stacked in half the bytes, products are added in float32;
    measured likewise, 9e-3 of the largest entry at most, and a singular value of a hundredth of the largest is seen to
    3e-3 of itself, one of a thousandth to 20 %.
    Raises InputError for an unknown scope, buffers, stack or weighting.
    """
    weighting = named(weighting)
    for name, value, known in (("scope", scope, SCOPES), ("buffers", buffers, BUFFERS), ("stack", stack, STACKS)):
        if value not in known:
            raise InputError(f"{name}: unknown option '{value}'. {nearest(value, known)}")

    def edited(update: Variables) -> Variables:
        return update if buffers == "in_vector" else {"params": update["params"]}

    def pack(update: Variables) -> Variables:
        return update | packed(edited(update))

    def combine(updates: PyTree, weights: Array, view: ServerView) -> PyTree:
        on_stack = partial(view.on_stack or tree.on_one_device, partial(_edited_sum, edit))
        is_plain = view.received.round < warmup_mean_rounds
        return in_double(on_stack)(updates, weights, is_plain, view.is_present, *evidence(view))

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        readable = view._replace(uploads=view.uploads._replace(update=unpacked(view.uploads.update)))
        weights, state = weighting.update(state, readable)
        chosen = edited(view.uploads.update)
        averaged = {name: leaves for name, leaves in view.uploads.update.items() if name not in chosen}
        each = partial(combine, weights=weights, view=view)
        combined = each(chosen) if scope == "model" else jax.tree.map(each, chosen)
        rest = tree.weighted_sum(averaged, weights if buffers == "weighted_mean" else jnp.zeros_like(weights))
        return Aggregate({**rest, **combined}, {}), state

    def revision(gram: Array, view: ServerView) -> Array:
        is_plain = view.received.round < warmup_mean_rounds
        return jnp.where(is_plain, jnp.eye(len(gram)), edit(gram, view.is_present, *evidence(view)))

    is_one_vector = scope == "model" and buffers != "in_vector"
    return Aggregator(
        weighting.init,
        update,
        pack=pack if stack == "bfloat16" else None,
        revision=revision if is_one_vector else None,
    )


def _edited_sum(
    edit: Edit, sums: tree.Sums, stack: PyTree, weights: Array, is_plain: Array, is_present: Array, *evidence: Array
) -> PyTree:
    """p @ C, [m], is the factor of each update in the final sum; rows that are absent are zero in the stack."""

    def factors(gram: Array) -> Array:
        edited = weights.astype(float) @ edit(gram, is_present, *evidence)
        return jnp.where(is_plain, weights, edited.astype(weights.dtype))

    return sums.over_clients(combination, sums.once(factors, sums.over_columns(inner_products, stack)), stack)
