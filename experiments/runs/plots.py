"""Pictures of a run: its curves, and who has which classes; and how every picture writes names and is saved."""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import MaxNLocator

STYLE = {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3, "font.size": 10}
NAMES = {
    "test": "test set",
    "clients": "clients, shared model",
    "personal": "clients, own model",
    "personal_test": "test set, own models",
    "newcomers": "newcomers",
    "valid": "clients, validation",
    "train": "training",
}
_CHARACTER = 0.085  # inches, at font size 9
_MOST = 40  # names on an axis
_LONGEST = 60  # characters of a name


@contextlib.contextmanager
def try_drawing(what: Path | str) -> Iterator[None]:
    """Let a picture fail alone: whatever its drawing raises becomes a printed warning, for no result depends on it."""
    try:
        yield
    except Exception as error:
        plt.close("all")
        reason = (str(error).strip().splitlines() or ["no reason given"])[0]
        print(f"warning: {what} could not be drawn ({type(error).__name__}: {reason}); no result depends on it")


def escape_label(name: str) -> str:
    r"""A name for Matplotlib to draw letter by letter: `$` begins no formula, and a character that the font lacks, such
    as a line break, is written as an escape (\n)."""
    shown = "".join(each if ord(each) in _glyphs() else each.encode("unicode_escape").decode() for each in name)
    shown = shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
    return shown.replace("$", r"\$")


@functools.cache
def _glyphs() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties())).get_charmap())


def draw_curves(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Accuracy (Dice of masks) and loss against rounds: the mean over seeds, a band from the lowest to the highest."""
    unseen = dict.fromkeys(key.rpartition("/")[0] for key in lines[0] if key.startswith("unseen/"))
    groups = NAMES | {group: escape_label(f"unseen: {group.removeprefix('unseen/')}") for group in unseen}
    colours = {group: f"C{i % 10}" for i, group in enumerate(groups)}
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
        score = "dice" if any(key.endswith(("/dice", "/dice_mean")) for key in lines[0]) else "accuracy"
        axes = dict(zip((score, "loss"), panels, strict=True))
        for kind, axis in axes.items():
            for group, name in groups.items():
                for key in {f"{group}/{kind}", f"{group}/{kind}_mean"} & lines[0].keys():
                    _line(axis, lines, key, name, colours[group])
        _finish(figure, axes)
        figure.savefig(path, dpi=120)
        plt.close(figure)


def _line(axis: Axes, lines: Sequence[Mapping[str, Any]], key: str, name: str, colour: str) -> None:
    rounds = sorted({line["round"] for line in lines})
    seeds = [[line[key] for line in lines if line["round"] == round] for round in rounds]
    band(axis, rounds, seeds, name, color=colour, marker="o" if len(rounds) == 1 else None)


def band(axis: Axes, at: Sequence[float], seeds: Sequence[Sequence[float | None]], label: str, **style: Any) -> None:
    """The mean over seeds, and a band from the lowest to the highest where there are several; a figure that was not
    finite is a gap."""
    values = [np.array(each, dtype=float) for each in seeds]
    (line,) = axis.plot(at, [each.mean() for each in values], label=label, **style)
    if any(len(each) > 1 for each in values):
        lowest, highest = [each.min() for each in values], [each.max() for each in values]
        axis.fill_between(at, lowest, highest, color=line.get_color(), alpha=0.2, linewidth=0)


def _finish(figure: Figure, axes: Mapping[str, Axes]) -> None:
    """One legend for both panels; in a panel with a single line its name goes into the axis label."""
    found = {}
    for kind, axis in axes.items():
        lines = {line.get_label(): line for line in axis.get_lines()}
        axis.set(xlabel="round", ylabel=f"{kind} ({next(iter(lines))})" if len(lines) == 1 else kind)
        axis.set_ylim(0, None if kind == "loss" else 1)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        found |= lines if len(lines) > 1 else {}
    if found:
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=5, frameon=False)


def draw_partition(counts: np.ndarray, client_names: Sequence[str], class_names: Sequence[str], path: Path) -> None:
    """Heat-map of `counts` [clients, classes]: classes down, clients across, training examples as colour."""
    num_clients, num_classes = counts.shape
    width = float(np.clip(2.5 + 0.3 * num_clients, 5, 12))
    longest = max(len(escape_label(name)) for name in client_names) * _CHARACTER
    is_turned = num_clients <= _MOST and longest > (width - 2) / num_clients
    height = float(np.clip(1.6 + 0.24 * num_classes, 2.6, 12)) + (0.7 * longest if is_turned else 0)
    with plt.rc_context({"font.size": 9}):
        figure, axis = plt.subplots(figsize=(width, height), layout="constrained")
        image = axis.imshow(counts.T, aspect="auto", cmap="Blues", vmin=0, interpolation="nearest")
        figure.colorbar(image, label="training examples", ticks=MaxNLocator(integer=True), fraction=0.05, pad=0.02)
        name_axis(axis.xaxis, client_names, most=_MOST)
        name_axis(axis.yaxis, class_names, most=_MOST)
        if is_turned:
            axis.tick_params(axis="x", rotation=45)
            plt.setp(axis.get_xticklabels(), ha="right", rotation_mode="anchor")
        axis.set(xlabel="client", ylabel="class")
        figure.savefig(path, dpi=120)
        plt.close(figure)


def draw_growth(records: Sequence[Mapping[str, Any]], varied: str, is_flat: bool, path: Path) -> None:
    """Seconds a round and peak memory against what is varied, a line an algorithm; dotted is what would be ideal.

    is_flat: ideally a round takes the same time whatever is varied; else it grows in proportion. Memory is ideally the
    same in either case. What is ideally the same is drawn from 0, so that a tenth more looks like a tenth.
    """
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
        for axis, key, label in zip(panels, ("seconds_median", "peak_rss_mb"), ("seconds a round", "MB"), strict=True):
            is_level = is_flat or key != "seconds_median"
            for name in dict.fromkeys(record["algorithm"] for record in records):
                line = [(record[varied], record[key]) for record in records if record["algorithm"] == name]
                axis.plot(*zip(*line, strict=True), marker="o", label=name)
            first, last = (end((record[varied], record[key]) for record in records) for end in (min, max))
            ideal = first[1] if is_level else first[1] * last[0] / first[0]
            axis.plot((first[0], last[0]), (first[1], ideal), color="grey", linestyle=":", label="ideal")
            axis.set(xscale="log", xlabel=varied, ylabel=label)
            axis.set(**{"ylim": (0, 1.1 * axis.dataLim.ymax)} if is_level else {"yscale": "log"})
        panels[0].legend(frameon=False)
        figure.savefig(path, dpi=120, format="png")
        plt.close(figure)


def name_axis(axis: Axis, names: Sequence[str], most: int) -> None:
    """Names where there is room for them, positions where there is not."""
    if len(names) <= most:
        axis.set_ticks(range(len(names)), list(map(escape_label, names)))
    else:
        axis.set_major_locator(MaxNLocator(integer=True))
