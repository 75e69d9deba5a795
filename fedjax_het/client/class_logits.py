"""Mean logits of classes, which a client collects while it trains (FedDistill)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het.algorithm import Measure, Memory, Problem, StatefulGradientRule
from fedjax_het.client.memories import result
from fedjax_het.labels import check_classes
from fedjax_het.types import Array, Batch, ClientView, Key, Named, Params, Variables

_TOTALS = "logits"  # the name of the totals in a client's memory


def gradient_with_logits(init: Callable[[ClientView], Named]) -> StatefulGradientRule:
    """The gradient of the objective. The rule's state is the totals of the logits before each step, by class.

        sums_c <- sums_c + sum_{b: y_b = c} z_b,   counts_c <- counts_c + |{b: y_b = c}|

    Args:
        init: View before training -> {"sums" [class, class], "counts" [class]}: `no_totals` or `kept_totals`.
    """

    def update(
        totals: Named, problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple:
        check_classes(batch.labels)

        def loss(params: Params) -> tuple[Array, tuple[Variables, Array]]:
            forward = problem.forward(params, state, batch, view, key)
            return problem.sum_terms(forward), (forward.state, forward.outputs.logits)

        (value, (new_state, logits)), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        sums = totals["sums"]
        member = batch.mask[:, None] * jax.nn.one_hot(batch.labels, len(sums), dtype=sums.dtype)
        logits = jnp.where(batch.mask[:, None] > 0, logits, 0)
        added = jnp.matmul(member.T, logits, precision=jax.lax.Precision.HIGHEST)
        totals = {"sums": sums + added.astype(sums.dtype), "counts": totals["counts"] + jnp.sum(member, axis=0)}
        return ((value, new_state), gradient), totals

    return StatefulGradientRule(init, update)


def no_totals(view: ClientView) -> Named:
    """Totals of no examples. Reads: the shared leaf outline/logits, see `models.with_logit_shape`."""
    return _totals_of(view.received.shared, 0)


def kept_totals(view: ClientView) -> Named:
    """The totals of all rounds of the client. Reads: memory["logits"], see `totals_with_one_example`."""
    return view.memory[_TOTALS]


def totals_with_one_example() -> dict[str, Memory]:
    """The memory of `kept_totals`, which begins with one example of each class with logits 0."""
    return {_TOTALS: result("gradient", lambda variables: _totals_of(variables, 1))}


def _totals_of(variables: Variables, count: int) -> Named:
    _, num_classes, _ = variables["outline"]["logits"].shape
    dtype = variables["outline"]["logits"].dtype
    return {"sums": jnp.zeros((num_classes, num_classes), dtype), "counts": jnp.full(num_classes, count, dtype)}


def mean_logits() -> Measure:
    """{"means" [class, class], "counts" [class]} of the logits that `gradient_with_logits` has collected."""

    def measure(problem: Problem, view: ClientView) -> Named:
        totals = view.results["gradient"]
        return {
            "means": totals["sums"] / jnp.maximum(totals["counts"], 1)[:, None],
            "counts": totals["counts"],
        }

    return measure
