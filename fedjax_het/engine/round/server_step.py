"""The server's part of a round: aggregation, server optimizer, and published quantities."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import optax

from fedjax_het import tree
from fedjax_het._internal.float64 import run_in_double
from fedjax_het.algorithm import Aggregator, Summary
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round.update_plan import AGGREGATOR, UpdateSums, streamed_sums, summary_key
from fedjax_het.errors import InputError
from fedjax_het.placeholders import MissingSlotError
from fedjax_het.problem import Problem
from fedjax_het.types import Aggregate, Array, Named, PyTree, ServerState, ServerView, Variables


def aggregate(
    aggregator: Aggregator, problem: Problem, state: PyTree, view: ServerView, sums: UpdateSums | None = None
) -> tuple[Aggregate, PyTree]:
    """Run an aggregator.

    Args:
        aggregator: The aggregator.
        problem: The learning problem.
        state: The state of the aggregator.
        view: The view of the server; its updates are `StackedUpdates`.
        sums: The sums accumulated while clients trained; None: computed from the stack.

    Returns:
        The server's decision, and the aggregator's new state.

    Raises:
        InputError: The aggregator reads what it does not declare or no slot provides, or returns the stack itself.
    """
    return _run("the aggregator", aggregator, partial(aggregator.update, problem, state), view, sums, AGGREGATOR)


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
        All published quantities, with the parts that the server keeps.

    Raises:
        InputError: As in `aggregate`.
    """

    def update(name: str, view: ServerView) -> PyTree:
        stack = replace(cast(StackedUpdates, view.updates), stack=reports[name])
        if summaries[name].reads == "sums":
            stack = replace(stack, reads="tensors")
        return summaries[name].update(old[name], stack, view)

    return old | {
        name: _run(f"published['{name}']", summary, partial(update, name), view, sums, summary_key(name))
        for name, summary in summaries.items()
        if name in reports
    }


def select_sent(summaries: Mapping[str, Summary], published: Named) -> Named:
    """The parts of the published quantities that clients receive."""
    sent = {name: summary.send(published[name]) for name, summary in summaries.items() if summary.send}
    return published | sent


def _run(
    name: str,
    part: Aggregator | Summary,
    update: Callable[[ServerView], PyTree],
    view: ServerView,
    sums: UpdateSums | None,
    key: str,
) -> PyTree:
    """Run the update of a part on the view with the access and the precision that it declares."""
    streamed = dict(zip(streamed_sums(part), sums[key], strict=True)) if sums else {}
    stack = cast(StackedUpdates, view.updates)
    stack = replace(stack, reader=name, reads=part.reads, declared=part.sums, sums=streamed)
    view = view._replace(updates=stack)
    try:
        result = run_in_double(lambda: update(view)) if part.reads == "gram" else update(view)
    except MissingSlotError as error:
        raise InputError(f"{name} {error}") from None
    if any(isinstance(leaf, StackedUpdates) for leaf in jax.tree.leaves(result)):
        raise InputError(
            f"{name} returns a stack of clients' updates or reports itself. Reduce it with weighted_sum, combine or "
            "products, or take its arrays with tensors()."
        )
    return result


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
