"""Contrast between features at the boundaries of structures and around them, over two passes (FedDG)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het.client.objectives._contrastive import supervised_contrast
from fedjax_het.errors import InputError
from fedjax_het.labels import find_kind
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Array
from fedjax_het.validation import NonNegative, Positive, validate_arguments

PairTerm = Callable[[ForwardPass, ForwardPass], Array]
"""A term of an objective that reads two passes over the same examples, including its weight."""
_DILATIONS = 5


@validate_arguments
def boundary_contrast(weight: NonNegative = 0.1, temperature: Positive = 0.05) -> PairTerm:
    """Contrast the features at a structure's boundary with those around it.

        weight sum_c supervised_contrast(contour and background vectors of class c, in both passes)

    The vectors of an example are its mean features over the pixels of two masks, see `boundary_masks`. Every class
    except 0 is a structure. An example is excluded for a structure if one of that structure's masks is empty.
    If labels are per example, there is no boundary and the term is exactly 0.

    Args:
        weight: The paper's γ (.1).
        temperature: Temperature of the contrast (.05 in the code).

    Raises:
        InputError: Labels are masks, but features are not maps of the same size.

    References:
        Liu et al., FedDG, CVPR 2021. arXiv:2103.06030
    """

    def boundary_contrast(first: ForwardPass, second: ForwardPass) -> Array:
        labels, features = first.batch.labels, first.outputs.features
        if find_kind(labels).name not in ("masks", "sequences"):
            return jnp.zeros(())
        if features.shape[:-1] != labels.shape:
            raise InputError(
                f"boundary contrast: features have shape {features.shape[1:]} per example and masks "
                f"{labels.shape[1:]}. Use a model whose features are maps of the masks' size, such as unet."
            )
        structures = jnp.arange(1, first.outputs.logits.shape[-1])
        contours, backgrounds = boundary_masks(labels == structures[:, None, None, None])
        contrast = jax.vmap(contrast_of_masks, in_axes=(None, None, 0, 0, None, None))
        losses = contrast(features, second.outputs.features, contours, backgrounds, first.batch.mask > 0, temperature)
        return weight * jnp.sum(losses)

    return boundary_contrast


def boundary_masks(masks: Array) -> tuple[Array, Array]:
    """(contour, background) of masks [..., height, width], all of them bool.

    The contour is the mask without its erosion, the background five dilations without the mask. Neighbors are the four
    adjacent pixels; pixels outside the image are not in any mask.
    """
    wide = masks
    for _ in range(_DILATIONS):
        wide = jnp.any(_with_neighbours(wide), axis=0)
    return masks & ~jnp.all(_with_neighbours(masks), axis=0), wide & ~masks


def _with_neighbours(masks: Array) -> Array:
    """[5, ..., height, width]: each pixel and its four neighbors."""
    padded = jnp.pad(masks, [(0, 0)] * (masks.ndim - 2) + [(1, 1)] * 2)
    shifts = ((1, 1), (0, 1), (2, 1), (1, 0), (1, 2))
    height, width = masks.shape[-2:]
    return jnp.stack([padded[..., down : down + height, right : right + width] for down, right in shifts])


def contrast_of_masks(
    first: Array, second: Array, contour: Array, background: Array, is_example: Array, temperature: float
) -> Array:
    """The supervised contrast of the mean features in a contour and in a background, in two passes.

    Shapes: features [batch, height, width, feature], masks [batch, height, width], is_example [batch] -> [].
    """
    vectors = jnp.concatenate([mean_over(maps, mask) for mask in (contour, background) for maps in (first, second)])
    is_used = is_example & jnp.any(contour, axis=(1, 2)) & jnp.any(background, axis=(1, 2))
    kinds = jnp.repeat(jnp.array([1, 1, 0, 0]), len(is_used))
    return supervised_contrast(vectors, kinds, jnp.tile(is_used, 4), temperature)


def mean_over(features: Array, mask: Array) -> Array:
    """The mean of features [batch, height, width, feature] over a mask; 0 if it is empty."""
    mask = mask.astype(features.dtype)
    total = jnp.einsum("bhw,bhwf->bf", mask, features, precision=jax.lax.Precision.HIGHEST)
    return total / jnp.maximum(jnp.sum(mask, axis=(1, 2)), 1)[:, None]
