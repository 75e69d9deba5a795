"""What the papers' figures show, drawn from their experiments."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from ..runs import diagnostics_log
from ..runs.plots import STYLE, band
from ..runs.records import MetricLines
from ..runs.run_directory import RunDirectory
from .comparison import Entry
from .measures import Seen, shares

Runs = Mapping[tuple[str, str], RunDirectory]
"""{(row, column): a finished run}"""
_WORDS = {
    "test/accuracy": "accuracy on the common test set",
    "unseen": "accuracy on the domain left out",
    "own": "accuracy on clients' own test examples",
}
Draw = Callable[[Sequence[Entry], Runs, Path], None]


def sweep(varied: str, scale: str = "log") -> Draw:
    """A panel a measure, a line a row, columns as numbers: the mean over seeds, a band from lowest to highest."""

    def draw(entries: Sequence[Entry], runs: Runs, path: Path) -> None:
        def lines(axis: Axes, measure: str) -> None:
            found = [entry for entry in entries if entry.measure == measure and entry.seeds]
            for row in dict.fromkeys(entry.row for entry in found):
                of_row = sorted((float(entry.column), entry.seeds) for entry in found if entry.row == row)
                _band(axis, [at for at, _ in of_row], [seeds for _, seeds in of_row], row)
            axis.set(xscale=scale, xlabel=varied, ylabel=measure)

        _panels(list(dict.fromkeys(entry.measure for entry in entries)), lines, path)

    return draw


def curves(figure: str = "test/accuracy") -> Draw:
    """A panel a column, a line a row: a figure of metrics.jsonl against rounds, by seeds as above.

    figure: "test/accuracy"; "unseen" is the accuracy on whatever domain was left out, "own" the mean on clients' own
    test examples, of their own models where they have some.
    """

    def draw(entries: Sequence[Entry], runs: Runs, path: Path) -> None:
        def lines(axis: Axes, column: str) -> None:
            for (row, of), run in runs.items():
                if of == column:
                    _against_rounds(
                        axis, MetricLines(run / "metrics.jsonl").read(), lambda line: _figure(line, figure), row
                    )
            axis.set(title=column, xlabel="round", ylabel=_WORDS.get(figure, figure))

        _panels(list(dict.fromkeys(column for _, column in runs)), lines, path)

    return draw


def over_looks(values: Mapping[str, Seen], name: str) -> Draw:
    """The same of what a diagnostic told.   values: by what is added to a row's name."""

    def draw(entries: Sequence[Entry], runs: Runs, path: Path) -> None:
        def lines(axis: Axes, column: str) -> None:
            for (row, of), run in runs.items():
                if of == column:
                    told = MetricLines(run / diagnostics_log.NAME).read()
                    for which, value in values.items():
                        _against_rounds(axis, told, value, f"{row}, {which}" if which else row)
            axis.set(title=column, xlabel="round", ylabel=name)

        _panels(list(dict.fromkeys(column for _, column in runs)), lines, path)

    return draw


def shares_of_classes(entries: Sequence[Entry], runs: Runs, path: Path) -> None:
    """A panel a column, an alpha: the share of each class, down, in each client's examples, across; clients with the
    same largest class beside each other."""

    def image(axis: Axes, column: str) -> None:
        found = next(shares(run) for (_, of), run in runs.items() if of == column)
        found = found[np.argsort(found.argmax(axis=1), kind="stable")]
        shown = axis.imshow(found.T, aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axis.set(title=f"alpha {column}", xlabel="client", ylabel="class")
        axis.grid(visible=False)
        axis.figure.colorbar(shown, label="share")

    _panels(list(dict.fromkeys(column for _, column in runs)), image, path)


def _figure(line: Mapping, name: str) -> float:
    if name == "own":
        return line.get("personal/accuracy_mean", line["clients/accuracy_mean"])
    domains = [key for key in line if key.startswith(f"{name}/") and key.endswith("/accuracy")]
    return line[name] if name in line else float(np.mean([line[key] for key in domains]))


def _against_rounds(axis: Axes, lines: Sequence[Mapping], value: Callable[[Mapping], float], label: str) -> None:
    rounds = sorted({line["round"] for line in lines})
    _band(axis, rounds, [[value(line) for line in lines if line["round"] == round] for round in rounds], label)


def _band(axis: Axes, at: Sequence[float], seeds: Sequence[Sequence[float]], label: str) -> None:
    band(axis, at, seeds, label, marker="o" if len(at) < 10 else None)


def _panels(names: Sequence[str], draw: Callable[[Axes, str], None], path: Path) -> None:
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            1, len(names), figsize=(4.5 * len(names), 3.8), layout="constrained", squeeze=False
        )
        for axis, name in zip(panels[0], names, strict=True):
            draw(axis, name)
        if panels[0][0].get_legend_handles_labels()[0]:
            panels[0][0].legend(frameon=False)
        figure.savefig(path, dpi=120, format="png")
        plt.close(figure)
