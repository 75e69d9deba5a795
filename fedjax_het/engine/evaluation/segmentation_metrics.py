"""How well predicted masks cover the true ones."""

import jax
import jax.numpy as jnp

from fedjax_het.types import Array

OVERLAP_METRICS = ("dice", "iou", "dice_foreground", "iou_foreground")


def overlap_metrics(predicted: Array, truth: Array, num_classes: int) -> dict[str, Array]:
    """Hard Dice coefficient and intersection over union of each image, [batch].

        dice_c = 2 |P_c n T_c| / (|P_c| + |T_c|),   iou_c = |P_c n T_c| / |P_c u T_c|,   P_c, T_c: the pixels of class c

    "dice" and "iou" are means over all classes, "dice_foreground" and "iou_foreground" over all but class 0, the
    background. A class that is neither in the image nor found in it counts 0, as in HarmoFL's code, where published
    figures come from: images without foreground cannot reach 1.
    Shapes: predicted and truth [batch, ...] of one shape, integers in 0 .. num_classes - 1.
    Jiang et al., HarmoFL, AAAI 2022; official code med-air/HarmoFL, utils/loss.py.
    """
    found, there = (
        jax.nn.one_hot(mask.reshape(mask.shape[0], -1), num_classes, dtype=bool) for mask in (predicted, truth)
    )
    common = jnp.sum(found & there, axis=1)
    both = jnp.sum(found, axis=1) + jnp.sum(there, axis=1)
    scores = {"dice": 2 * common / jnp.maximum(both, 1), "iou": common / jnp.maximum(both - common, 1)}
    foreground = {f"{name}_foreground": score[:, 1:].mean(axis=1) for name, score in scores.items()}
    return {name: score.mean(axis=1) for name, score in scores.items()} | foreground
