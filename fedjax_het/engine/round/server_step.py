"""The server's part of a round: aggregation, server optimizer, and published quantities."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import jax
import jax.numpy as jnp
import optax

from fedjax_het import tree
from fedjax_het._internal.float64 import run_in_required_precision
from fedjax_het.algorithm import Aggregator, Summary
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round.problem import LocalProblem
from fedjax_het.engine.round.update_plan import AGGREGATOR, UpdateSums, summary_key
from fedjax_het.errors import InputError
from fedjax_het.types import Aggregate, Array, Named, PyTree, ServerState, ServerView, Variables


def aggregate(
    aggregator: Aggregator, problem: LocalProblem, state: PyTree, view: ServerView, sums: UpdateSums | None = None
) -> tuple[Aggregate, PyTree]:
    """Run an aggregator, in float64 if it requires that.

    Args:
        aggregator: The aggregator.
        problem: The learning problem.
        state: The state of the aggregator.
        view: The view of the server; its updates are `StackedUpdates`.
        sums: The sums accumulated while clients trained; None: computed from the stack.

    Returns:
        The server's decision, and the aggregator's new state.

    Raises:
        InputError: The aggregator returns the stack itself.
    """
    return _check_reduced(
        "the aggregator",
        run_in_required_precision(lambda: aggregator.update(problem, state, _with_sums(view, sums, AGGREGATOR))),
    )


def update_published(
    summaries: Mapping[str, Summary], old: Named, reports: Named, view: ServerView, sums: UpdateSums | None = None
) -> Named:
    """Update the published quantities that summarize the given reports; others are unchanged.

    Args:
        summaries: The algorithm's summaries by name.
        old: The published quantities.
        reports: Reports, or answers to the survey, by name; leaves [cohort, ...].
        view: The view of the server.
        sums: As in `aggregate`.

    Returns:
        All published quantities.

    Raises:
        InputError: A summary returns the stack of reports itself.
    """

    def update(name: str) -> PyTree:
        own_view = _with_sums(view, sums, summary_key(name))
        return summaries[name].update(
            old[name], replace(cast(StackedUpdates, own_view.updates), stack=reports[name]), own_view
        )

    new = {name: run_in_required_precision(lambda name=name: update(name)) for name in summaries if name in reports}
    return old | {name: _check_reduced(f"published['{name}']", value) for name, value in new.items()}


def _check_reduced(part: str, result: PyTree) -> PyTree:
    if any(isinstance(leaf, StackedUpdates) for leaf in jax.tree.leaves(result)):
        raise InputError(
            f"{part} returns a stack of clients' updates or reports itself. Reduce it with weighted_sum, combine or "
            "products, or take its arrays with tensors()."
        )
    return result


def _with_sums(view: ServerView, sums: UpdateSums | None, key: str) -> ServerView:
    """The view for one part, with an iterator over its sums in the order of calls to `weighted_sum`.

    Each attempt of `run_in_required_precision` needs a new view.
    """
    stack = cast(StackedUpdates, view.updates)
    return view._replace(updates=replace(stack, sums=iter(sums[key]) if sums else None))


def apply_server_optimizer(
    optimizer: optax.GradientTransformation, server: ServerState, update: Variables
) -> tuple[Variables, PyTree]:
    """Apply the aggregated update to the shared variables.

    The optimizer gets the pseudo-gradient, -update, of the parameters; the update of other collections (batch
    statistics, amplitudes) is added directly.

    Returns:
        (New shared variables, new state of the optimizer.)
    """
    old = server.shared
    pseudo_gradient = tree.scale(-1.0, update["params"])
    steps, state = optimizer.update(pseudo_gradient, server.optimizer, old["params"])
    moved = {name: tree.add(leaves, update[name]) for name, leaves in old.items() if name != "params"}
    return {"params": optax.apply_updates(old["params"], steps), **moved}, state


def weighted_mean_loss(losses: Array, num_examples: Array) -> Array:
    """The mean loss over all examples of present clients; NaN if there are none."""
    total = jnp.sum(num_examples)
    return jnp.where(total > 0, jnp.sum(losses * num_examples) / jnp.maximum(total, 1), jnp.nan)
