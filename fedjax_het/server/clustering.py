"""Clusters of first neighbours (FINCH) over arrays of fixed shapes, computed inside the program."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.types import Array

_SHORTEST = 1e-8  # a vector shorter than this has no direction: its cosine with every other is 0


def cluster_by_first_neighbours(points: Array, is_member: Array) -> Array:
    """The coarsest partition of FINCH that has more than one cluster, or else the one cluster.

        kappa(i) = the nearest other point by the cosine;   i and j are linked if j = kappa(i), i = kappa(j) or
        kappa(i) = kappa(j);   clusters are the connected components

    and so again with the mean points of the clusters, until one cluster would be left. No number of clusters is chosen,
    and no cluster has one member, unless there is but one point. Neighbours are found in float32, the lowest index
    first where several are as near; means are of the points themselves, each with the same weight.

    Args:
        points: [m, feature].
        is_member: [m] bool; the other points take no part.

    Returns:
        [m], the lowest index among the members of a point's cluster; a point that takes no part has its own.

    References:
        Sarfraz, Sharma and Stiefelhagen, Efficient Parameter-free Clustering Using First Neighbor Relations, CVPR 2019.
        arXiv:1902.11266
    """
    size = len(points)
    apart = jnp.arange(size)

    def merge(labels: Array) -> Array:
        belongs = (labels[:, None] == apart) & is_member[:, None]  # [point, cluster]
        counts = jnp.sum(belongs, axis=0)
        sums = jnp.matmul(belongs.T.astype(points.dtype), points, precision=jax.lax.Precision.HIGHEST)
        means = sums / jnp.maximum(counts, 1)[:, None].astype(points.dtype)
        return _components(_first_neighbours(means, counts > 0))[labels]

    def merge_unless_last(_: Array, labels: Array) -> Array:
        merged = merge(labels)
        num_clusters = jnp.sum(is_member & (merged == apart))
        return jnp.where(num_clusters > 1, merged, labels)

    # Clusters have at least two members, so that their number halves from level to level.
    return jax.lax.fori_loop(0, size.bit_length(), merge_unless_last, merge(apart))


def _first_neighbours(points: Array, is_member: Array) -> Array:
    """[m]: the nearest other member of each member; a point that has none is its own."""
    points = points.astype(jnp.float32)
    lengths = jnp.linalg.norm(points, axis=1, keepdims=True)
    directions = jnp.where(lengths > _SHORTEST, points / jnp.maximum(lengths, _SHORTEST), 0)
    cosines = jnp.matmul(directions, directions.T, precision=jax.lax.Precision.HIGHEST)
    index = jnp.arange(len(points))
    is_other = is_member[:, None] & is_member & (index[:, None] != index)
    nearest = jnp.argmin(jnp.where(is_other, jnp.clip(1 - cosines, 0, 2), jnp.inf), axis=1)
    return jnp.where(jnp.any(is_other, axis=1), nearest, index)


def _components(neighbour: Array) -> Array:
    """[m]: the lowest index in the component of each point, where every point is linked to its neighbour.

    Whoever follows neighbours ends in the one cycle of the component; steps double.
    """
    size = len(neighbour)
    index = jnp.arange(size)

    def double(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        lowest, ahead = state  # of the next 2^n points, and the point that far ahead
        return jnp.minimum(lowest, lowest[ahead]), ahead[ahead]

    lowest, ahead = jax.lax.fori_loop(0, size.bit_length(), double, (index, neighbour))
    root = lowest[ahead]
    return jnp.full(size, size).at[root].min(index)[root]


def cluster_means(points: Array, labels: Array, is_member: Array, most: int) -> tuple[Array, Array]:
    """The mean points of the clusters, in the order of their lowest members.

    Args:
        points: [m, feature].
        labels: [m], as `cluster_by_first_neighbours` gives them.
        is_member: [m].
        most: The largest number of clusters.

    Returns:
        (means [most, feature], zeros behind the last cluster; whether there is such a cluster [most]).
    """
    is_first = is_member & (labels == jnp.arange(len(labels)))
    place = (jnp.cumsum(is_first) - 1)[labels]
    belongs = (place[:, None] == jnp.arange(most)) & is_member[:, None]
    counts = jnp.sum(belongs, axis=0)
    sums = jnp.matmul(belongs.T.astype(points.dtype), points, precision=jax.lax.Precision.HIGHEST)
    return sums / tree.positive_or_one(counts)[:, None].astype(points.dtype), counts > 0
