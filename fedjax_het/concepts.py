"""Concepts: changes of examples that are applied where a batch is read.

In a federation with several concepts, the entry v of an index table means example v % n under concept v // n, for n
stored examples. A table thus says which examples a client has and how they look, and no example is stored twice.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from fedjax_het._internal.keys import make_key

Array = jax.Array
HostArray = jax.Array | np.ndarray  # on the device, or on the host
_BLACK_TO_WHITE = 255
_NOISE, _FLIPS = 0, 1  # folded into the key of an example


class Concepts(NamedTuple):
    """What each concept does, in this order; None where no concept of the federation changes it."""

    classes: Int[HostArray, "concepts class"] | None = None  # the new class of each class
    turns: Int[HostArray, "concepts"] | None = None  # quarter turns of images, counter-clockwise
    rotation: Float[HostArray, "concepts 2 2"] | None = None  # of the first two features of vectors
    is_inverted: Bool[HostArray, "concepts"] | None = None  # whether black and white are exchanged
    noise: Float[HostArray, "concepts"] | None = None  # standard deviation, relative to the range of uint8 images
    flips: Float[HostArray, "concepts"] | None = None  # the probability of another class, uniform over the others
    seed: Int[HostArray, ""] | None = None  # of noise and flips
    numbers: Int[HostArray, " examples"] | None = None  # of the examples, which noise and flips depend on

    @property
    def changes_inputs(self) -> bool:
        return any(change is not None for change in (self.turns, self.rotation, self.is_inverted, self.noise))


def change_inputs(concepts: Concepts, concept: Array, number: Array, inputs: Array) -> Array:
    """Change a batch of stored inputs, whose type stays the same.

    Args:
        concepts: All concepts.
        concept: The concept of each input, [batch].
        number: The number of each example, [batch].
        inputs: [batch, ...].
    """
    if concepts.turns is not None:
        inputs = jax.vmap(turn)(inputs, jnp.asarray(concepts.turns)[concept])
    if concepts.rotation is not None:
        rotation = jnp.asarray(concepts.rotation, inputs.dtype)[concept]
        points = jnp.einsum("bij,bj->bi", rotation, inputs[:, :2], precision=jax.lax.Precision.HIGHEST)
        is_turned = jnp.any(rotation != jnp.eye(2), axis=(1, 2))[:, None]  # the others keep their bits
        inputs = inputs.at[:, :2].set(jnp.where(is_turned, points, inputs[:, :2]))
    axes = (slice(None), *[None] * (inputs.ndim - 1))
    if concepts.is_inverted is not None:
        inputs = jnp.where(jnp.asarray(concepts.is_inverted)[concept][axes], _BLACK_TO_WHITE - inputs, inputs)
    if concepts.noise is not None:
        draw = jax.vmap(lambda key: jax.random.normal(key, inputs.shape[1:]))
        strength = jnp.asarray(concepts.noise)[concept][axes]
        noise = strength * draw(_keys(concepts, concept, number, _NOISE))
        if inputs.dtype == jnp.uint8:
            noisy = jnp.clip(jnp.rint(inputs + _BLACK_TO_WHITE * noise), 0, _BLACK_TO_WHITE)
        else:
            noisy = inputs + noise
        inputs = jnp.where(strength > 0, noisy.astype(inputs.dtype), inputs)
    return inputs


def change_labels(concepts: Concepts, concept: Array, number: Array, labels: Array) -> Array:
    """Change labels [batch], or turn masks [batch, height, width] like their images; see `change_inputs`."""
    if labels.ndim > 2 and concepts.turns is not None:
        labels = jax.vmap(turn)(labels, jnp.asarray(concepts.turns)[concept])
    if concepts.classes is not None:
        labels = jnp.asarray(concepts.classes, labels.dtype)[concept, labels]
        if concepts.flips is not None:
            num_classes = concepts.classes.shape[1]

            def draw(key: Array, probability: Array) -> Array:
                is_flipped = jax.random.bernoulli(key, probability)
                return is_flipped * jax.random.randint(jax.random.fold_in(key, 0), (), 1, num_classes)

            probability = jnp.asarray(concepts.flips)[concept]
            shift = jax.vmap(draw)(_keys(concepts, concept, number, _FLIPS), probability)
            labels = (labels + shift.astype(labels.dtype)) % num_classes
    return labels


def turn(pixels: Array, turns: Array) -> Array:
    """Turn a square image or mask [height, width, ...] counter-clockwise by 0 to 3 quarter turns."""
    pixels = jnp.where(turns % 2 == 1, pixels.swapaxes(0, 1), pixels)
    return mirror(pixels, (turns == 1) | (turns == 2), turns >= 2)


def mirror(pixels: Array, rows: Array, columns: Array) -> Array:
    """Reverse the order of rows and of columns of an image or mask [height, width, ...], each if its flag is set."""
    pixels = jnp.where(rows, pixels[::-1], pixels)
    return jnp.where(columns, pixels[:, ::-1], pixels)


def _keys(concepts: Concepts, concept: Array, number: Array, purpose: int) -> Array:
    """[batch]: keys that are functions of the seed, the concept and the number of the example."""
    assert concepts.seed is not None  # there is one with noise or flips
    root = jax.random.fold_in(make_key(concepts.seed), purpose)
    return jax.vmap(lambda c, n: jax.random.fold_in(jax.random.fold_in(root, c), n))(concept, number)
