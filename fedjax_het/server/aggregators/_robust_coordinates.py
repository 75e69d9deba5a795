"""Coordinate-wise robust rules: median, trimmed mean, and mean around the median.

They sort columns of the stack block by block, so a second stack is never held, even after preparation steps.
"""

from collections.abc import Callable
from typing import Unpack

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem
from fedjax_het.server.aggregators._robust_steps import Preparation, count, prepare
from fedjax_het.types import Aggregate, Array, PyTree, ServerView
from fedjax_het.validation import CountOrZero, validate_arguments

_BLOCK = 1 << 20  # stack entries sorted at a time


def median_of_columns(rows: Array, is_member: Array) -> Array:
    """[columns]: the median; for an even number of members, the mean of the two middle values."""
    ordered, last = _sort(rows, is_member), jnp.maximum(count(is_member) - 1, 0)
    return 0.5 * ordered[last // 2] + 0.5 * ordered[(last + 1) // 2]


def trimmed_mean_of_columns(rows: Array, is_member: Array, num_attackers: int) -> Array:
    """[columns]: the mean without the f lowest and the f highest values."""
    place, num_members = jnp.arange(len(rows))[:, None], count(is_member)
    is_kept = (place >= num_attackers) & (place < num_members - num_attackers)
    return jnp.sum(jnp.where(is_kept, _sort(rows, is_member), 0), axis=0) / _size(num_members - 2 * num_attackers, rows)


def mean_around_median_of_columns(rows: Array, is_member: Array, num_attackers: int) -> Array:
    """[columns]: the mean of the m - f values nearest to the median; ties in cohort order."""
    distances = jnp.abs(rows - median_of_columns(rows, is_member))
    order = jnp.argsort(jnp.where(is_member[:, None], distances, jnp.inf), axis=0, stable=True)
    nearest, size = jnp.take_along_axis(rows, order, axis=0), count(is_member) - num_attackers
    return jnp.sum(jnp.where(jnp.arange(len(rows))[:, None] < size, nearest, 0), axis=0) / _size(size, rows)


def _sort(rows: Array, is_member: Array) -> Array:
    return jnp.sort(jnp.where(is_member[:, None], rows, jnp.inf), axis=0)


def _size(number: Array, rows: Array) -> Array:
    return jnp.maximum(number, 1).astype(rows.dtype)


def coordinate_rule(
    name: str, reduce: Callable[[Array, Array], Array], num_attackers: int, preparation: Preparation
) -> Aggregator:
    """A coordinate-wise rule.

    Args:
        name: The name of the rule, for messages.
        reduce: (rows [rows, columns], is_member [rows]) -> [columns]; rows of non-members are zero.
        num_attackers: f.
        preparation: The steps before the rule, and other shared options.
    """
    steps = prepare(name, num_attackers, preparation)

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        steps.check(view)
        updates, is_member, made = view.updates.select(steps.is_treated), view.is_present, None
        if preparation.get("before"):
            _, is_member, made = steps.members(updates, view)

        def reduce_block(block: Array) -> Array:
            if made is not None:
                block = jnp.matmul(made.astype(block.dtype), block, precision=jax.lax.Precision.HIGHEST)
            return reduce(block, is_member)

        def reduce_leaf(leaf: Array) -> Array:
            rows = leaf.reshape(len(leaf), -1)
            return tree.map_over_blocks(reduce_block, max(1, _BLOCK // len(rows)), rows).reshape(leaf.shape[1:])

        combined = jax.tree.map(reduce_leaf, updates.tensors())
        return steps.decide(combined, view, steps.has_majority(is_member)), state

    reads = "gram" if preparation.get("before") else "tensors"
    return Aggregator(lambda shared, num_clients: (), update, reads)


@validate_arguments
def coordinate_median(num_attackers: CountOrZero = 0, **preparation: Unpack[Preparation]) -> Aggregator:
    """The coordinate-wise median; for an even number of clients, the mean of the two middle values.

    Assumes 2 f < m.

    Args:
        num_attackers: f; only used by the steps "nnm" and "arc".
        preparation: See `Preparation`.

    References:
        Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning, ICML 2018.
    """
    return coordinate_rule("coordinate_median", median_of_columns, num_attackers, preparation)


@validate_arguments
def trimmed_mean(num_attackers: CountOrZero = 1, **preparation: Unpack[Preparation]) -> Aggregator:
    """The coordinate-wise mean without the f lowest and f highest values.

    Assumes 2 f < m; 2 f >= m raises an error, while some implementations silently reduce f.

    Args:
        num_attackers: f.
        preparation: See `Preparation`.

    Raises:
        InputError: When traced, 2 f >= m.

    References:
        Yin, Chen, Ramchandran and Bartlett, Byzantine-Robust Distributed Learning, ICML 2018.
    """
    return coordinate_rule(
        "trimmed_mean",
        lambda rows, is_member: trimmed_mean_of_columns(rows, is_member, num_attackers),
        num_attackers,
        preparation,
    )


@validate_arguments
def mean_around_median(num_attackers: CountOrZero = 1, **preparation: Unpack[Preparation]) -> Aggregator:
    """The coordinate-wise mean of the m - f values nearest to the median.

    Assumes 2 f < m.

    Args:
        num_attackers: f.
        preparation: See `Preparation`.

    Raises:
        InputError: When traced, 2 f >= m.

    References:
        Xie, Koyejo and Gupta, Generalized Byzantine-tolerant SGD, 2018. arXiv:1802.10116
    """
    return coordinate_rule(
        "mean_around_median",
        lambda rows, is_member: mean_around_median_of_columns(rows, is_member, num_attackers),
        num_attackers,
        preparation,
    )
