"""Clustering over arrays of fixed shapes, inside the compiled program: FINCH, division in two, and merging."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.types import Array

_SHORTEST = 1e-8  # cosines with shorter vectors are 0
Linkage = Literal["single", "complete"]
Merging = Literal["complete", "average"]


def cluster_by_first_neighbours(points: Array, is_member: Array) -> Array:
    """The coarsest FINCH partition with more than one cluster, or a single cluster if there is none.

        kappa(i) = the nearest other point by the cosine;   i and j are linked if j = kappa(i), i = kappa(j) or
        kappa(i) = kappa(j);   clusters are the connected components

    This is repeated with the cluster means until one cluster would be left. There is no hyperparameter, and each
    cluster has at least two members, unless there is only one point. Neighbors are found in float32, with ties broken
    by the lowest index; cluster means weigh all points equally.

    Args:
        points: [m, feature].
        is_member: [m] bool; other points are ignored.

    Returns:
        [m], the lowest index among the members of a point's cluster; for ignored points their own index.

    References:
        Sarfraz, Sharma and Stiefelhagen, Efficient Parameter-free Clustering Using First Neighbor Relations, CVPR 2019.
        arXiv:1902.11266
    """
    size = len(points)
    singletons = jnp.arange(size)

    def merge(labels: Array) -> Array:
        belongs = (labels[:, None] == singletons) & is_member[:, None]  # [point, cluster]
        counts = jnp.sum(belongs, axis=0)
        sums = jnp.matmul(belongs.T.astype(points.dtype), points, precision=jax.lax.Precision.HIGHEST)
        means = sums / jnp.maximum(counts, 1)[:, None].astype(points.dtype)
        return _components(_first_neighbours(means, counts > 0))[labels]

    def merge_unless_last(_: Array, labels: Array) -> Array:
        merged = merge(labels)
        num_clusters = jnp.sum(is_member & (merged == singletons))
        return jnp.where(num_clusters > 1, merged, labels)

    # Clusters have at least two members, so their number at least halves per level.
    return jax.lax.fori_loop(0, size.bit_length(), merge_unless_last, merge(singletons))


def _first_neighbours(points: Array, is_member: Array) -> Array:
    """[m]: the nearest other member of each member; the point itself if there is none."""
    points = points.astype(jnp.float32)
    lengths = jnp.linalg.norm(points, axis=1, keepdims=True)
    directions = jnp.where(lengths > _SHORTEST, points / jnp.maximum(lengths, _SHORTEST), 0)
    cosines = jnp.matmul(directions, directions.T, precision=jax.lax.Precision.HIGHEST)
    index = jnp.arange(len(points))
    is_other = is_member[:, None] & is_member & (index[:, None] != index)
    nearest = jnp.argmin(jnp.where(is_other, jnp.clip(1 - cosines, 0, 2), jnp.inf), axis=1)
    return jnp.where(jnp.any(is_other, axis=1), nearest, index)


def _components(neighbour: Array) -> Array:
    """[m]: the lowest index in the component of each point, where every point is linked to its neighbor.

    Following neighbors ends in the only cycle of the component; computed by pointer doubling.
    """
    size = len(neighbour)
    index = jnp.arange(size)

    def double(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        lowest, ahead = state  # the minimum over the next 2^n points, and the point 2^n steps ahead
        return jnp.minimum(lowest, lowest[ahead]), ahead[ahead]

    lowest, ahead = jax.lax.fori_loop(0, size.bit_length(), double, (index, neighbour))
    root = lowest[ahead]
    return jnp.full(size, size).at[root].min(index)[root]


def cluster_means(points: Array, labels: Array, is_member: Array, max_clusters: int) -> tuple[Array, Array]:
    """The cluster means, ordered by lowest member.

    Args:
        points: [m, feature].
        labels: [m], from `cluster_by_first_neighbours`.
        is_member: [m].
        max_clusters: The maximum number of clusters.

    Returns:
        (means [max_clusters, feature], padded with zeros; whether the cluster exists [max_clusters]).
    """
    is_first = is_member & (labels == jnp.arange(len(labels)))
    place = (jnp.cumsum(is_first) - 1)[labels]
    belongs = (place[:, None] == jnp.arange(max_clusters)) & is_member[:, None]
    counts = jnp.sum(belongs, axis=0)
    sums = jnp.matmul(belongs.T.astype(points.dtype), points, precision=jax.lax.Precision.HIGHEST)
    return sums / tree.positive_or_one(counts)[:, None].astype(points.dtype), counts > 0


def bipartition(similarity: Array, is_member: Array, linkage: Linkage = "single") -> Array:
    """Divide the members of a cluster into two parts.

    Single linkage minimizes the largest similarity between members of different parts: it removes the weakest edge of
    the maximum spanning tree. Complete linkage merges, until two parts are left, the two whose least similar members
    are the most similar.

    Args:
        similarity: [n, n], symmetric.
        is_member: [n] bool.
        linkage: "single" (default) or "complete".

    Returns:
        [n] bool, the second part, which does not contain the first member.
    """
    if linkage == "complete":
        return is_member & (merge_nearest(similarity, is_member, num_parts=2) != jnp.argmax(is_member))
    return _cut_spanning_tree(jnp.where(is_member[:, None] & is_member, similarity, -jnp.inf), is_member)


def _cut_spanning_tree(similarity: Array, is_member: Array) -> Array:
    """Prim's algorithm from the first member: those added before the weakest edge are one part."""
    first = jnp.argmax(is_member)
    num = len(similarity)

    def add(number: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        nearest, order, strength = carry
        reach = jnp.where(order < num, -jnp.inf, nearest)
        node = jnp.argmax(reach)
        is_step = reach[node] > -jnp.inf
        order = order.at[node].min(jnp.where(is_step, number, num))
        strength = strength.at[number].set(jnp.where(is_step, reach[node], jnp.inf))
        return jnp.where(is_step, jnp.maximum(nearest, similarity[node]), nearest), order, strength

    order = jnp.full(num, num).at[first].set(0)
    start = similarity[first], order, jnp.full(num, jnp.inf, similarity.dtype)
    _, order, strength = jax.lax.fori_loop(1, num, add, start)
    return is_member & (order >= jnp.argmin(strength))


def merge_nearest(
    similarity: Array,
    is_member: Array,
    *,
    num_parts: int = 1,
    min_similarity: float | Array = -jnp.inf,
    linkage: Merging = "complete",
) -> Array:
    """Merge the two most similar parts, at first single members, again and again (agglomerative clustering).

    Args:
        similarity: [n, n], symmetric.
        is_member: [n] bool.
        num_parts: The number of parts at which merging ends.
        min_similarity: Parts that are less similar than this are not merged.
        linkage: The similarity of two parts: that of their least similar members ("complete"), or the mean over pairs
            of members ("average").

    Returns:
        [n], the lowest index among the members of a point's part; for others their own index.
    """
    num, ids = len(similarity), jnp.arange(len(similarity))

    def pairs(likeness: Array, is_part: Array) -> Array:
        return jnp.where((is_part[:, None] & is_part) & (ids[:, None] < ids), likeness, -jnp.inf)

    def is_unfinished(carry: tuple[Array, Array, Array]) -> Array:
        likeness, _, is_part = carry
        return (jnp.sum(is_part) > num_parts) & (jnp.max(pairs(likeness, is_part)) >= min_similarity)

    def merge(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        likeness, labels, is_part = carry
        kept, merged = jnp.divmod(jnp.argmax(pairs(likeness, is_part)), num)
        if linkage == "complete":
            row = jnp.minimum(likeness[kept], likeness[merged])
        else:
            size, added = (jnp.sum(labels == part) for part in (kept, merged))
            row = (size * likeness[kept] + added * likeness[merged]) / (size + added)
        likeness = likeness.at[kept].set(row).at[:, kept].set(row)
        return likeness, jnp.where(labels == merged, kept, labels), is_part.at[merged].set(False)

    return jax.lax.while_loop(is_unfinished, merge, (similarity, ids, is_member))[1]
