"""Gaussian noise on trees, and the bounds on their norms that give it its meaning."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.types import Array, Key, PyTree
from fedjax_het.validation import may_be_nonzero


def clip_norm(values: PyTree, bound: float | Array) -> PyTree:
    """Clip a tree to a norm over all leaves together."""
    length = tree.norm(values)
    factor = jnp.where(length > bound, bound / tree.positive_or_one(length), 1)
    return tree.scale(factor, values)


def clip_layers(values: PyTree, bound: float | Array) -> PyTree:
    """Clip each of the l leaves to norm bound / sqrt(l)."""
    leaf_bound = bound / len(jax.tree.leaves(values)) ** 0.5
    return jax.tree.map(lambda leaf: clip_norm(leaf, leaf_bound), values)


def draw_normals(key: Key, like: PyTree) -> PyTree:
    """Draw independent standard normals with the shapes and dtypes of a tree."""
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    return structure.unflatten([jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)])


def add_noise(values: PyTree, deviation: float | Array, key: Key) -> PyTree:
    """Add noise of this standard deviation; if it is known to be 0, values are unchanged to the bit."""
    return tree.add(values, tree.scale(deviation, draw_normals(key, values))) if may_be_nonzero(deviation) else values
