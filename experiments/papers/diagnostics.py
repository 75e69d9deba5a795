"""Figures of what diagnostics saw in a run's last look, of its first seed; a column a method."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from ..runs import diagnostics_log, images
from ..runs.run_directory import RunDirectory
from .comparison import Entry
from .figures import Runs
from .measures import last_look

_LEVELS = 25


def segmentations(entries: Sequence[Entry], runs: Runs, path: Path) -> None:
    """A row an image: its true outlines, and each method's beside them, with the Dice of all classes but 0 below."""
    shown = {method: _contours(run) for (method, _), run in runs.items()}
    first = next(iter(shown.values()))
    places = np.argwhere(first["is_image"])
    names = _clients(next(iter(runs.values())))

    def draw(axis: Axes, row: int, column: int) -> None:
        place = tuple(places[row])
        found = list(shown.values())[max(column - 1, 0)]
        images.show_image(axis, found["images"][place])
        images.draw_outline(axis, found["true"][place], images.TRUE)
        if column:
            images.draw_outline(axis, found["predicted"][place], images.FOUND, "dashed")
            axis.set_xlabel(f"Dice {100 * _dice(found['true'][place], found['predicted'][place]):.1f}", fontsize=9)

    figure = images.draw_grid([names[client] for client, _ in places], ["truth", *shown], draw, side=2.4)
    _save(figure, path)


def landscapes(entries: Sequence[Entry], runs: Runs, path: Path) -> None:
    """A row a client, its loss in colour, alike over a row: + is the server's model, x the lowest loss of the grid."""
    lines = {method: last_look(run)[0] for (method, _), run in runs.items()}
    names = _clients(next(iter(runs.values())))[: len(next(iter(lines.values()))["landscape"]["clients"])]

    def surfaces(client: int) -> list[np.ndarray]:
        return [np.array(line["landscape"]["clients"][client], float) for line in lines.values()]

    def draw(axis: Axes, client: int, column: int) -> None:
        steps, surface = list(lines.values())[column]["landscape"]["steps"], surfaces(client)[column]
        ends = [end(each) for end, each in zip((np.nanmin, np.nanmax), [surfaces(client)] * 2, strict=True)]
        levels = np.geomspace(max(ends[0], 1e-6), max(ends[1], 2e-6), _LEVELS)
        drawn = axis.contourf(steps, steps, surface.T, levels=levels, norm=LogNorm(), cmap="viridis")
        at = np.unravel_index(np.nanargmin(surface), surface.shape)
        axis.plot(0, 0, "+", color="white", markersize=10, markeredgewidth=2)
        axis.plot(steps[at[0]], steps[at[1]], "x", color="red", markersize=7, markeredgewidth=2, clip_on=False)
        axis.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], aspect="equal")
        if column == len(lines) - 1:
            axis.figure.colorbar(drawn, ax=axis, label="loss", format="%.2g")

    _save(images.draw_grid(names, list(lines), draw, side=2.4), path)


def _contours(run: RunDirectory) -> dict[str, np.ndarray]:
    return diagnostics_log.load_images(run.path, last_look(run)[0])["contours"]


def _clients(run: RunDirectory) -> list[str]:
    """Of the cohort's clients in its order."""
    names = [client["client"] for client in run.read("partition.json")["clients"]]
    return [names[i] for i in last_look(run)[0]["cohort"]["ids"]]


def _dice(true: np.ndarray, found: np.ndarray) -> float:
    both, either = np.sum((true == found) & (true > 0)), np.sum(true > 0) + np.sum(found > 0)
    return float(2 * both / either) if either else 1.0


def _save(figure: plt.Figure, path: Path) -> None:
    figure.savefig(path, dpi=120, format="png")
    plt.close(figure)
