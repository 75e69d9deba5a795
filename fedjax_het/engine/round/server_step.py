"""What happens to the uploads of a round once they are there."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import optax

from fedjax_het import tree
from fedjax_het._internal.float64 import run_in_required_precision
from fedjax_het.algorithm import Aggregator, Summary
from fedjax_het.engine.round.problem import LocalProblem
from fedjax_het.engine.round.update_plan import AGGREGATOR, Sums, summary_key
from fedjax_het.types import Aggregate, Array, Named, PyTree, ServerState, ServerView, Variables


def aggregate(
    aggregator: Aggregator, problem: LocalProblem, state: PyTree, view: ServerView, sums: Sums | None = None
) -> tuple[Aggregate, PyTree]:
    """Run an aggregator, in float64 where it asks for that.

    Args:
        aggregator: whose update is run.
        problem, state, view: what it is handed; view.updates is a `StackedUpdates`.
        sums: those that ran while clients trained; None sums up the stack.

    Returns:
        The server's decision, and the aggregator's new state.
    """
    return run_in_required_precision(lambda: aggregator.update(problem, state, _with_sums(view, sums, AGGREGATOR)))


def summarise(
    summaries: Mapping[str, Summary], old: Named, reports: Named, view: ServerView, sums: Sums | None = None
) -> Named:
    """The published quantities after these reports (or answers); those that condense something else stay.

    sums: as in `aggregate`.
    """

    def update(name: str) -> PyTree:
        seen = _with_sums(view, sums, summary_key(name))
        return summaries[name].update(old[name], replace(seen.updates, stack=reports[name]), seen)

    new = {name: run_in_required_precision(lambda name=name: update(name)) for name in summaries if name in reports}
    return old | new


def _with_sums(view: ServerView, sums: Sums | None, key: str) -> ServerView:
    """The view for one part, whose sums come in the order in which it asks for them. Made anew for each attempt."""
    stack: Any = view.updates
    return view._replace(updates=replace(stack, sums=None if sums is None else iter(sums[key])))


def apply_server_optimizer(
    optimizer: optax.GradientTransformation, server: ServerState, update: Variables
) -> tuple[Variables, PyTree]:
    """(new shared variables, new optimizer state). The optimizer sees the pseudo-gradient, -update, of the trainable
    leaves; other collections (batch statistics, amplitudes) simply move by their update."""
    old = server.shared
    pseudo_gradient = tree.scale(-1.0, update["params"])
    steps, state = optimizer.update(pseudo_gradient, server.optimizer, old["params"])
    moved = {name: tree.add(leaves, update[name]) for name, leaves in old.items() if name != "params"}
    return {"params": optax.apply_updates(old["params"], steps), **moved}, state


def weighted_mean_loss(losses: Array, num_examples: Array) -> Array:
    """Over the examples of those present; NaN where nobody is."""
    total = jnp.sum(num_examples)
    return jnp.where(total > 0, jnp.sum(losses * num_examples) / jnp.maximum(total, 1), jnp.nan)
