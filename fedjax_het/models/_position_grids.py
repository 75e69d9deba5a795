"""Position embeddings of images, resampled for other image sizes as in published code."""

import math
from typing import Literal

import numpy as np

from fedjax_het.errors import InputError

Resampling = Literal["timm", "huggingface", "dinov2", "dinov2_registers"]
_ANTIALIASED = ("timm", "dinov2_registers")


def resample_positions(
    positions: np.ndarray, num_tokens: int, grid: tuple[int, int], resampling: Resampling
) -> np.ndarray:
    """Resample the rows of patches, [tokens + g^2, feature] -> [tokens + height * width, feature].

    Bicubic; an equal grid is unchanged, and so are the rows of tokens that are no patches. "timm" and
    "dinov2_registers" weight all patches below those of a coarser grid (a = -1/2), "huggingface" four patches
    (a = -3/4). "dinov2", the code of the first DINOv2, also moves the sampling points, by a scale of (n + 0.1) / g.

    Args:
        positions: The embeddings of a square grid of patches, row by row, after those of other tokens.
        num_tokens: The number of other tokens.
        grid: Height and width of the new grid.
        resampling: The published code to follow.

    Raises:
        InputError: The grid is not square.
    """
    tokens, patches = positions[:num_tokens], positions[num_tokens:]
    side = math.isqrt(len(patches))
    if side * side != len(patches):
        raise InputError(
            f"pretrained: the file has {len(positions)} position embeddings, which are not {num_tokens} and those of a "
            "square grid of patches. Choose the network that the file is of (distilled, registers)."
        )
    if grid == (side, side):
        return positions
    rows, columns = (_weigh(side, size, resampling) for size in grid)
    resampled = np.einsum("is,jt,stf->ijf", rows, columns, patches.reshape(side, side, -1).astype(np.float64))
    return np.concatenate([tokens, resampled.reshape(-1, positions.shape[1])])


def _weigh(old: int, new: int, resampling: Resampling) -> np.ndarray:
    """The weights [new, old] of bicubic interpolation along one axis."""
    scale = old / (new + 0.1 if resampling == "dinov2" else new)
    centers = scale * (np.arange(new) + 0.5)
    weights = np.zeros((new, old))
    if resampling in _ANTIALIASED:
        stretch = max(scale, 1)
        weights = _cubic((np.arange(old) + 0.5 - centers[:, None]) / stretch, -0.5)
        return weights / weights.sum(axis=1, keepdims=True)
    first = np.floor(centers - 0.5).astype(int)
    for tap in range(-1, 3):
        index = first + tap
        nearest = np.clip(index, 0, old - 1)  # patches beyond the border are those at it
        np.add.at(weights, (np.arange(new), nearest), _cubic(index + 0.5 - centers, -0.75))
    return weights


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic kernel, zero beyond distance 2."""
    x = np.abs(x)
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))
