"""Distances between the boundaries of predicted and true masks."""

from collections.abc import Callable

import numpy as np
import scipy  # imports its subpackages lazily
from jaxtyping import Int

Masks = Int[np.ndarray, "examples *pixels"]


def hausdorff(predicted: Masks, truth: Masks) -> float:
    """Hausdorff distance in pixels: as `surface_distance`, with the maximum over the boundary pixels of a class."""
    return _mean_over_images(predicted, truth, lambda distances: distances.max())


def surface_distance(predicted: Masks, truth: Masks) -> float:
    """Average symmetric surface distance in pixels: from each boundary pixel of one mask to the nearest of the other.

    The boundary of a class consists of its pixels next to another class or at the image border. The mean is over the
    pixels of both boundaries, then over the true or predicted classes of the image except 0, the background, then over
    images; images without such classes are skipped. If a class is only true or only predicted, its distance is the
    image diagonal. NaN if all images are skipped.
    """
    return _mean_over_images(predicted, truth, lambda distances: distances.mean())


def _mean_over_images(predicted: Masks, truth: Masks, summarize: Callable[[np.ndarray], float]) -> float:
    values = []
    for prediction, true_mask in zip(predicted, truth, strict=True):
        classes = np.setdiff1d(np.union1d(prediction, true_mask), [0])
        if len(classes):
            values.append(np.mean([summarize(_boundary_distances(prediction == c, true_mask == c)) for c in classes]))
    return float(np.mean(values)) if values else float("nan")


def _boundary_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The distances from the boundary pixels of each mask to the other's boundary."""
    if not (first.any() and second.any()):
        return np.array([np.linalg.norm(np.array(first.shape) - 1)])
    boundaries = [mask & ~scipy.ndimage.binary_erosion(mask) for mask in (first, second)]
    to_first, to_second = (np.asarray(scipy.ndimage.distance_transform_edt(~boundary)) for boundary in boundaries)
    return np.concatenate([to_second[boundaries[0]], to_first[boundaries[1]]])
