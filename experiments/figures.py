"""Pictures of experiments. `plot_...` is a function `Draw`, (entries, runs) -> drawing, or returns one."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Drawing

from fedjax_het.cli.runs import diagnostics_log, plots
from fedjax_het.cli.runs.figures import Curve, Heat, Panel, View, mean_curve
from fedjax_het.cli.runs.results import RunResults

from .measures import LineValue, class_shares
from .spec import Entry, Runs

Draw = Callable[[Sequence[Entry], Runs], Drawing]
_LABELS = {
    "test/accuracy": "accuracy on the common test set",
    "unseen": "accuracy on the domain left out",
    "own": "accuracy on clients' own test examples",
}
_NUM_LEVELS = 25


# ---- curves ----------------------------------------------------------------------------------------------------------
def make_curves(
    points: Iterable[tuple[str, float, Sequence[float]]],
    names: Sequence[str] = (),
    average: Callable[[Sequence[float]], np.floating] = np.mean,
) -> list[Curve]:
    """Make the curve of each label through its points, with a band from the lowest to the highest value.

    Args:
        points: (label, x, values).
        names: labels in the order of their colors, where several panels share them.
        average: the average of the values at a point.
    """
    by_label: dict[str, list[tuple[float, Sequence[float]]]] = {}
    for label, x, seeds in points:
        by_label.setdefault(label, []).append((x, seeds))
    colors = {label: color for color, label in enumerate(names or by_label)}
    curves = []
    for label, pairs in by_label.items():
        x, values = zip(*sorted(pairs, key=lambda pair: pair[0]), strict=True)
        y = [float(average(value)) for value in values]
        curves.append(mean_curve(label, colors[label], x, values)._replace(y=y))
    return curves


def set_x_ticks(axis: Axes, ticks: Mapping[float, str]) -> None:
    """Set the ticks of the x axis, {x: name}, in place of all others."""
    axis.set_xticks(list(ticks), list(ticks.values()))
    axis.set_xticks([], minor=True)


def plot_columns(varied: str, scale: str = "log") -> Draw:
    """Draw one panel per measure and one curve per row over the columns as numbers.

    Args:
        varied: the quantity that varies over columns.
        scale: the scale of the columns, "log" or "linear".
    """

    def draw(entries: Sequence[Entry], runs: Runs) -> Drawing:
        panels = []
        for measure in dict.fromkeys(entry.measure for entry in entries):
            known = [entry for entry in entries if entry.measure == measure and entry.seeds]
            curves = make_curves((entry.row, float(entry.column), entry.seeds) for entry in known)
            panels.append(Panel("", varied, measure, curves, x_scale=scale))
        return plots.draw_view(View("", panels))

    return draw


def plot_rounds(figure: str = "test/accuracy") -> Draw:
    """Draw one panel per column and one curve per row: a figure of metrics.jsonl against rounds.

    Args:
        figure: "test/accuracy"; "unseen" for the accuracy on the domain that is left out; "own" for the mean accuracy
            on clients' own test examples, of their own models where they have any.
    """

    def value(line: Mapping) -> float:
        if figure == "own":
            return line.get("personal/accuracy_mean", line["clients/accuracy_mean"])
        domains = [key for key in line if key.startswith(f"{figure}/") and key.endswith("/accuracy")]
        return line[figure] if figure in line else float(np.mean([line[key] for key in domains]))

    return _plot_lines(lambda run: run.lines, {"": value}, _LABELS.get(figure, figure))


def plot_diagnostics(values: Mapping[str, LineValue], name: str) -> Draw:
    """Draw one panel per column and a curve per row and value: values of diagnostics.jsonl against rounds.

    Args:
        values: {suffix of the name of a row: the value}.
        name: the name of the values.
    """
    return _plot_lines(lambda run: run.snapshots, values, name)


def _plot_lines(read: Callable[[RunResults], list], values: Mapping[str, LineValue], y_label: str) -> Draw:
    def draw(entries: Sequence[Entry], runs: Runs) -> Drawing:
        panels = []
        for column in dict.fromkeys(column for _, column in runs):
            curves: list[Curve] = []
            for (row, run_column), run in runs.items():
                lines = read(run) if run_column == column else []
                rounds = sorted({line["round"] for line in lines})
                for name, value in values.items() if lines else ():
                    seeds = [[value(line) for line in lines if line["round"] == round] for round in rounds]
                    curves.append(mean_curve(f"{row}, {name}" if name else row, len(curves), rounds, seeds))
            panels.append(Panel(column, "round", y_label, curves))
        return plots.draw_view(View("", panels))

    return draw


def plot_class_shares(entries: Sequence[Entry], runs: Runs) -> Drawing:
    """Draw one heat map per column, an alpha: the share of each class (down) in each client's examples (across).

    Clients with the same largest class are beside each other.
    """
    panels = []
    for column in dict.fromkeys(column for _, column in runs):
        shares = next(class_shares(run) for (_, run_column), run in runs.items() if run_column == column)
        shares = shares[np.argsort(shares.argmax(axis=1), kind="stable")]
        clients, classes = (list(map(str, range(size))) for size in shares.shape)
        heat = Heat(clients, classes, shares.T.tolist(), "amount", "share")
        panels.append(Panel(f"alpha {column}", "client", "class", [heat]))
    return plots.draw_view(View("", panels))


# ---- images and surfaces ---------------------------------------------------------------------------------------------
def plot_segmentations(entries: Sequence[Entry], runs: Runs) -> Drawing:
    """Draw one row per image: its true outlines, and each method's beside them with the Dice of all classes but 0."""
    contours = {
        method: diagnostics_log.load_images(run.directory, run.last_snapshots[0])["contours"]
        for (method, _), run in runs.items()
    }
    first = next(iter(contours.values()))
    places = np.argwhere(first["is_image"])
    some_run = next(iter(runs.values()))
    names = some_run.cohort_names(some_run.last_snapshots[0])

    def draw_cell(axis: Axes, row: int, column: int) -> None:
        place = tuple(places[row])
        arrays = list(contours.values())[max(column - 1, 0)]
        plots.show_image(axis, arrays["images"][place])
        plots.draw_outline(axis, arrays["true"][place], plots.TRUE)
        if column:
            plots.draw_outline(axis, arrays["predicted"][place], plots.PREDICTED, "dashed")
            dice = compute_dice(arrays["true"][place], arrays["predicted"][place])
            axis.set_xlabel(f"Dice {100 * dice:.1f}", fontsize=9)

    return plots.draw_grid([names[client] for client, _ in places], ["truth", *contours], draw_cell, cell_size=2.4)


def plot_landscapes(entries: Sequence[Entry], runs: Runs) -> Drawing:
    """Draw one row per client: its loss around the server's model, with one color scale per row.

    + is the server's model, x the lowest loss of the grid.
    """
    lines = {method: run.last_snapshots[0] for (method, _), run in runs.items()}
    first = next(iter(lines.values()))
    names = next(iter(runs.values())).cohort_names(first)[: len(first["landscape"]["clients"])]

    def surfaces(client: int) -> list[np.ndarray]:
        return [np.array(line["landscape"]["clients"][client], float) for line in lines.values()]

    def draw_cell(axis: Axes, client: int, column: int) -> None:
        steps, surface = list(lines.values())[column]["landscape"]["steps"], surfaces(client)[column]
        low, high = np.nanmin(surfaces(client)), np.nanmax(surfaces(client))
        levels = np.geomspace(max(low, 1e-6), max(high, 2e-6), _NUM_LEVELS)
        drawn = axis.contourf(steps, steps, surface.T, levels=levels, norm=LogNorm(), cmap="viridis")
        minimum = np.unravel_index(np.nanargmin(surface), surface.shape)
        axis.plot(0, 0, "+", color="white", markersize=10, markeredgewidth=2)
        x, y = steps[minimum[0]], steps[minimum[1]]
        axis.plot(x, y, "x", color="red", markersize=7, markeredgewidth=2, clip_on=False)
        axis.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], aspect="equal")
        if column == len(lines) - 1:
            axis.figure.colorbar(drawn, ax=axis, label="loss", format="%.2g")

    return plots.draw_grid(names, list(lines), draw_cell, cell_size=2.4)


def compute_dice(true: np.ndarray, predicted: np.ndarray) -> float:
    """Compute the Dice coefficient of all classes but 0 together; 1 where there are none."""
    overlap = np.sum((true == predicted) & (true > 0))
    sizes = np.sum(true > 0) + np.sum(predicted > 0)
    return float(2 * overlap / sizes) if sizes else 1.0
