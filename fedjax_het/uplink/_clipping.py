"""Clipping of updates to a norm."""

from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Sent, Stage, StageView
from fedjax_het.types import Array, Variables
from fedjax_het.validation import Positive, validate_arguments

Collections = Literal["params", "all"]


@validate_arguments
def clip(norm: Positive, per_layer: bool = False, collections: Collections = "params") -> Stage:
    """Scale down every update whose norm exceeds a bound.

        u <- u min(1, C / |u|)

    The norm is computed in float32. Updates of norm C or less, including zeros, are unchanged to the bit.

    Args:
        norm: C, in units of the parameters; typically 0.1 to 1.
        per_layer: Whether each of the l tensors is clipped separately to C / sqrt(l), which bounds the norm of the
            whole update by C.
        collections: "params" sends other collections (batch statistics) unchanged; "all" clips all as one vector.

    Raises:
        InputError: The bound is not positive.

    References:
        McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018. arXiv:1710.06963
    """

    def send(update: Variables, view: StageView) -> Sent:
        return Sent(clip_layers(update, norm) if per_layer else clip_norm(update, norm))

    return Stage(send=send, collections=collections)


def clip_norm(update: Variables, bound: float | Array) -> Variables:
    """Clip a tree to a norm over all leaves together."""
    length = tree.norm(update)
    factor = jnp.where(length > bound, bound / tree.positive_or_one(length), 1)
    return tree.scale(factor, update)


def clip_layers(update: Variables, bound: float | Array) -> Variables:
    """Clip each of the l leaves to norm bound / sqrt(l)."""
    leaf_bound = bound / len(jax.tree.leaves(update)) ** 0.5
    return jax.tree.map(lambda leaf: clip_norm(leaf, leaf_bound), update)
