"""Images side by side: as they are, or with the outlines of their masks."""

from collections.abc import Callable, Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .plots import escape_label

TRUE, FOUND = "#ffd400", "#00e5ff"
"""Colours of outlines, which are seen on histology as on grey."""

_LINES = {"solid": 1.2, "dashed": 1.0}


def draw_grid(
    rows: Sequence[str], columns: Sequence[str], draw: Callable[[Axes, int, int], None], side: float = 1.9
) -> Figure:
    """A frame for each row and column, named beside and above; `draw` fills one, or leaves it empty."""
    size = (side * len(columns) + 0.3, side * len(rows) + 0.3)
    figure, axes = plt.subplots(len(rows), len(columns), figsize=size, squeeze=False, layout="constrained")
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            axis = axes[i, j]
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
            axis.spines[:].set_visible(False)
            if i == 0:
                axis.set_title(escape_label(column), fontsize=10)
            if j == 0:
                axis.set_ylabel(escape_label(row), fontsize=10)
            draw(axis, i, j)
    return figure


def show_image(axis: Axes, image: np.ndarray, ends: tuple[float, float] | None = None) -> None:
    """image: [height, width, channel]; one or three channels, of others the first.   ends: what is black, and white;
    the image's own lowest and highest values unless given."""
    values = np.asarray(image, np.float32)
    low, high = ends or (float(values.min()), float(values.max()))
    values = np.clip((values - low) / (high - low or 1.0), 0, 1)
    values = values if values.shape[-1] == 3 else np.repeat(values[..., :1], 3, axis=-1)
    axis.imshow(values, interpolation="nearest")


def draw_outline(axis: Axes, mask: np.ndarray, colour: str, style: str = "solid") -> None:
    """Around the pixels of every class but 0 of a mask [height, width]."""
    padded = np.pad(np.asarray(mask), 1)  # so that what touches the edge is closed there
    at = [np.arange(-1, side + 1) for side in mask.shape]
    for label in np.unique(padded)[1:]:
        drawn = {"colors": colour, "linestyles": style, "linewidths": _LINES[style]}
        axis.contour(at[1], at[0], padded == label, levels=[0.5], **drawn)
    axis.set(xlim=(-0.5, mask.shape[1] - 0.5), ylim=(mask.shape[0] - 0.5, -0.5))
