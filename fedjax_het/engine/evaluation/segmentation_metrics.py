"""Overlap metrics of segmentation masks."""

import jax
import jax.numpy as jnp

from fedjax_het.types import Array

OVERLAP_METRICS = ("dice", "iou", "dice_foreground", "iou_foreground")


def overlap_metrics(predicted: Array, truth: Array, num_classes: int) -> dict[str, Array]:
    """Hard Dice coefficient and intersection over union of each image, [batch].

        dice_c = 2 |P_c n T_c| / (|P_c| + |T_c|),   iou_c = |P_c n T_c| / |P_c u T_c|,   P_c, T_c: the pixels of class c

    "dice" and "iou" are means over all classes, "dice_foreground" and "iou_foreground" over all except class 0, the
    background. A class that is neither in the image nor predicted counts as 0, as in HarmoFL's code, which produced the
    published results: images without foreground cannot reach 1.

    Args:
        predicted: Predicted classes, [batch, ...] integers in 0 .. num_classes - 1.
        truth: True classes, of the same shape.
        num_classes: The number of classes.

    Returns:
        {name: [batch]} for each of OVERLAP_METRICS.

    References:
        Jiang et al., HarmoFL, AAAI 2022; official code med-air/HarmoFL, utils/loss.py.
    """
    is_predicted, is_true = (
        jax.nn.one_hot(mask.reshape(mask.shape[0], -1), num_classes, dtype=bool) for mask in (predicted, truth)
    )
    intersection = jnp.sum(is_predicted & is_true, axis=1)
    total = jnp.sum(is_predicted, axis=1) + jnp.sum(is_true, axis=1)
    scores = {
        "dice": 2 * intersection / jnp.maximum(total, 1),
        "iou": intersection / jnp.maximum(total - intersection, 1),
    }
    foreground = {f"{name}_foreground": score[:, 1:].mean(axis=1) for name, score in scores.items()}
    return {name: score.mean(axis=1) for name, score in scores.items()} | foreground
