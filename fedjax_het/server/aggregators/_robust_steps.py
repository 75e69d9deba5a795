"""Preparation steps of robust rules: nearest-neighbor mixing, bucketing, clipping, and adaptive robust clipping.

A step replaces the updates by linear combinations, with coefficients computed from their Gram matrix. Steps are
therefore composed without a second stack, and the rule reads the Gram matrix of the result.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedjax_het import geometry, tree
from fedjax_het._internal.keys import make_key
from fedjax_het._internal.random_order import draw_bits
from fedjax_het.errors import InputError
from fedjax_het.types import Aggregate, Array, ServerView, UpdateStack, Variables
from fedjax_het.validation import Count, Positive, Seed, refuse_without_effect

StepName = Literal["nnm", "bucketing", "clip", "arc"]
Radius = Positive | Literal["median"]
RobustBuffers = Literal["in_vector", "keep_server"]


class Preparation(TypedDict, total=False):
    """Options that all robust rules share.

    before: Steps before the rule, in order, each at most once: "nnm", "bucketing", "clip", "arc".
    bucket_size: Clients per bucket (default 2).
    clip_norm: The norm for "clip": a number (ByzFL: 2), or "median" (default), the median norm of the updates.
    seed: Seed of the permutations of bucketing, which are a function of (seed, round, client id) (default 0).
    buffers: Treatment of collections besides params: "in_vector" (default), along with the parameters; "keep_server",
        unchanged on the server. A separate mean would let a single client control them.
    """

    before: Sequence[StepName]
    bucket_size: Count
    clip_norm: Radius
    seed: Seed
    buffers: RobustBuffers


class Members(NamedTuple):
    """The inputs of a rule: combinations sum_j C_rj u_j of the updates, and their Gram matrix."""

    gram: Float[Array, "rows rows"]
    is_member: Bool[Array, "rows"]  # other rows belong to absent clients, and are zero
    coefficients: Float[Array, "rows cohort"]


def count(is_member: Array) -> Array:
    """The number of members, excluding padding and absent clients; m in the papers."""
    return jnp.sum(is_member)


def squared_distances(gram: Array) -> Array:
    """|u_i - u_j|^2 >= 0, [rows, rows]."""
    squared = jnp.diagonal(gram)
    return jnp.maximum(squared[:, None] + squared - 2 * gram, 0)


def ranks(values: Array, is_member: Array) -> Array:
    """The ascending rank of each member along the last axis, non-members last; ties by index."""
    order = jnp.argsort(jnp.where(is_member, values, jnp.inf), axis=-1, stable=True)
    return jnp.argsort(order, axis=-1, stable=True)


def median_of_members(values: Array, is_member: Array) -> Array:
    """[]: the median over members; for an even number, the mean of the two middle values; 0 without members."""
    ordered, last = jnp.sort(jnp.where(is_member, values, jnp.inf)), jnp.maximum(count(is_member) - 1, 0)
    return jnp.where(jnp.any(is_member), 0.5 * (ordered[last // 2] + ordered[(last + 1) // 2]), 0)


def clip_factors(norms: Array, is_member: Array, radius: Radius) -> Array:
    """min(1, radius / norm); 1 for a norm of 0."""
    limit = median_of_members(norms, is_member) if isinstance(radius, str) else radius
    return jnp.where(norms > limit, limit / tree.positive_or_one(norms), 1)


def mix_neighbours(gram: Array, is_member: Array, num_attackers: int) -> Array:
    """C: each member becomes the mean of the m - f members nearest to it, including itself."""
    distances = jnp.where(jnp.eye(len(gram), dtype=bool), -1, squared_distances(gram))
    size = jnp.maximum(count(is_member) - num_attackers, 1)
    is_near = (ranks(distances, is_member) < size) & is_member & is_member[:, None]
    return is_near / size


def clip_rows(gram: Array, is_member: Array, radius: Radius) -> Array:
    """C: each member is clipped to a norm."""
    return jnp.diag(clip_factors(geometry.lengths(gram), is_member, radius))


def clip_longest(gram: Array, is_member: Array, num_attackers: int) -> Array:
    """C: the k = floor(2 f (m - f)/m) longest members are clipped to the norm of the longest other member."""
    norms, num_members = geometry.lengths(gram), count(is_member)
    num_clipped = 2 * num_attackers * (num_members - num_attackers) // jnp.maximum(num_members, 1)
    place = ranks(norms, is_member)
    limit = jnp.max(jnp.where(place == num_members - num_clipped - 1, norms, 0))
    return jnp.diag(jnp.where(norms > limit, limit / tree.positive_or_one(norms), 1))


def bucket_means(place: Array, is_member: Array, size: int) -> tuple[Array, Array]:
    """(C, is_member) of the means of `size` consecutive members; the last bucket may be smaller.

    place: [rows], the position of each member, from 0.
    """
    num_buckets = -(-len(place) // size)
    is_inside = (place // size == jnp.arange(num_buckets)[:, None]) & is_member
    sizes = jnp.sum(is_inside, axis=1)
    return is_inside / jnp.maximum(sizes, 1)[:, None], sizes > 0


def random_place(view: ServerView, seed: int) -> Array:
    """[cohort]: each client's position in a random order of present clients, a function of (seed, round, ids)."""
    key = jax.random.fold_in(make_key(seed), view.received.round)
    order = jnp.lexsort((view.cohort, draw_bits(key, view.cohort), ~view.is_present))
    return jnp.argsort(order)


class Preparer(NamedTuple):
    """The steps before a rule, and its number of attackers."""

    rule: str
    num_attackers: int
    options: Preparation

    def is_treated(self, path: str) -> bool:
        """Whether the rule processes a leaf."""
        return self.options.get("buffers", "in_vector") == "in_vector" or tree.is_parameter(path)

    def num_rows(self, cohort_size: int) -> int:
        """The number of rows after all steps."""
        size = self.options.get("bucket_size", 2) if "bucketing" in self.options.get("before", ()) else 1
        return -(-cohort_size // size)

    def check(self, view: ServerView, min_rows: int = 1) -> None:
        """Raise an error if the cohort is too small even if every client reports.

        Args:
            view: The view of the server; only its shapes are used.
            min_rows: The minimum number of rows for the rule.

        Raises:
            InputError: There are at most 2 f rows, or fewer than `min_rows`.
        """
        cohort_size, needed = len(view.cohort), max(min_rows, 2 * self.num_attackers + 1)
        if (rows := self.num_rows(cohort_size)) < needed:
            kind = "clients" if rows == cohort_size else f"buckets (now {rows})"
            raise InputError(
                f"aggregator '{self.rule}': num_attackers={self.num_attackers} needs at least {needed} {kind} per "
                f"round, but the cohort has {cohort_size} clients. Lower num_attackers, or let more clients take part."
            )

    def has_majority(self, is_member: Array) -> Array:
        """[] bool: whether 2 f < m for the m present rows; otherwise the rule must not change the model."""
        return count(is_member) > 2 * self.num_attackers

    def members(self, updates: UpdateStack, view: ServerView) -> Members:
        """The Gram matrix of the updates after all steps."""
        members = Members(updates.gram(), view.is_present, jnp.eye(len(view.cohort)))
        for name in self.options.get("before", ()):
            coefficients, is_member = STEPS[name](self, members, view)
            gram = geometry.combined_gram(members.gram, coefficients)
            members = Members(gram, is_member, coefficients @ members.coefficients)
        return members

    def decide(self, combined: Variables, view: ServerView, is_usable: Array) -> Aggregate:
        """The rule's result for the leaves it processes, or zeros if unusable; other leaves are unchanged."""
        rest, _ = tree.partition(view.received.shared, self.is_treated)
        kept = jax.tree.map(lambda leaf: jnp.where(is_usable, leaf, 0), combined)
        return Aggregate(tree.merge(tree.zeros_like(rest), kept), {})


def prepare(rule: str, num_attackers: int, options: Preparation) -> Preparer:
    """Build the steps of a rule from its options.

    Raises:
        InputError: A step is listed twice, or an option belongs to a step that is not listed.
    """
    before = options.get("before", ())
    if repeated := [name for name in before if list(before).count(name) > 1]:
        raise InputError(f"before: '{repeated[0]}' is named twice. Name each step once.")
    for name, step in (("bucket_size", "bucketing"), ("seed", "bucketing"), ("clip_norm", "clip")):
        if name in options and step not in before:
            refuse_without_effect(prepare, f"without '{step}' in before", **{name: options[name]})
    return Preparer(rule, num_attackers, options)


def _mix(steps: Preparer, members: Members, view: ServerView) -> tuple[Array, Array]:
    return mix_neighbours(members.gram, members.is_member, steps.num_attackers), members.is_member


def _bucket(steps: Preparer, members: Members, view: ServerView) -> tuple[Array, Array]:
    size, place = steps.options.get("bucket_size", 2), random_place(view, steps.options.get("seed", 0))
    return bucket_means(place, members.is_member, size)


def _clip(steps: Preparer, members: Members, view: ServerView) -> tuple[Array, Array]:
    return clip_rows(members.gram, members.is_member, steps.options.get("clip_norm", "median")), members.is_member


def _clip_longest(steps: Preparer, members: Members, view: ServerView) -> tuple[Array, Array]:
    return clip_longest(members.gram, members.is_member, steps.num_attackers), members.is_member


STEPS: dict[StepName, Callable[[Preparer, Members, ServerView], tuple[Array, Array]]] = {
    "nnm": _mix,
    "bucketing": _bucket,
    "clip": _clip,
    "arc": _clip_longest,
}
"""Members -> (C, is_member); the rows are combinations of the members."""
