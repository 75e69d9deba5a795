"""What happens to the stacked uploads once the aggregator has decided."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import optax

from fedjax_het import tree
from fedjax_het.algorithm import Summary
from fedjax_het.types import Array, Named, PyTree, ServerState, ServerView, Upload, Variables


def summarize_reports(summaries: Mapping[str, Summary], old: Named, reports: Named, view: ServerView) -> Named:
    """The published quantities after these reports (or answers); those that condense something else stay."""
    return old | {
        name: summary.update(old[name], reports[name], view) for name, summary in summaries.items() if name in reports
    }


def sum_reports(summaries: Mapping[str, Summary], asked: Upload) -> Named:
    """The sums of the answers [cohort, ...], where a summary wants no more of them; who is absent answered zeros."""
    return {
        name: jax.tree.map(partial(jnp.sum, axis=0), jax.vmap(summary.summand)(asked.reports[name], asked))
        for name, summary in summaries.items()
        if summary.summand and name in asked.reports
    }


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
