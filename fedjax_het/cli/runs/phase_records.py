"""Records of phases, where the data of clients change with the round: in partition.json and in the summary."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_het import engine
from fedjax_het.cli.runs.figures import Heat, Panel, View, mean_curve
from fedjax_het.cli.runs.run_files import Json
from fedjax_het.data.phases import Phases

ACCURACY = "phases/accuracy_"
PHASE_CURVES = {f"{ACCURACY}next": "data of the next round", f"{ACCURACY}average": "all phases so far"}
"""Figures that are drawn over rounds, and their titles."""


def describe_phases(phases: Phases) -> Json:
    """The record of partition.json: the first round of each phase, and the first phase with the same data."""
    return {"starts": phases.starts.tolist(), "first_equal": phases.first_equal.tolist()}


def columns(about: Mapping[str, Any], lines: Sequence[Json], prefix: str = ACCURACY) -> np.ndarray | None:
    """The accuracy in all phases, [seeds, evaluations, phases]; None if it was not measured.

    Args:
        about: the record of the phases.
        lines: the lines of metrics.jsonl.
        prefix: of the names of the figures.
    """
    names = [f"{prefix}{phase}" for phase in about["first_equal"]]
    if names[0] not in lines[0]:
        return None
    return by_seed(lines, [[line[name] for name in names] for line in lines])


def by_seed(lines: Sequence[Json], values: Sequence[Any]) -> np.ndarray:
    """Arrange the values of lines as [seeds, evaluations, ...]."""
    seeds = sorted({line["seed"] for line in lines})
    own = [[value for line, value in zip(lines, values, strict=True) if line["seed"] == seed] for seed in seeds]
    return np.array(own, np.float64)


def summarize_phases(about: Mapping[str, Any], lines: Sequence[Json], num_classes: int) -> Json:
    """The record of summary.json: {figure: {"mean": [phases], "std": [phases]}} over seeds; std is the population's.

    Recovery is over the seeds that have recovered; "num_recovered" counts them.

    Args:
        about: the record of the phases.
        lines: the lines of metrics.jsonl.
        num_classes: the number of classes, for the accuracy of a random model.
    """
    accuracy = columns(about, lines)
    assert accuracy is not None
    present = by_seed(lines, [line["phases/present"] for line in lines]).astype(int)
    starts = np.broadcast_to(about["starts"], accuracy.shape)
    following = np.searchsorted(about["starts"], by_seed(lines, [line["round"] for line in lines]), side="right") - 1
    metrics = engine.PhaseMetrics(
        starts, present, following, starts, accuracy, columns(about, lines, "phases/personal_accuracy_")
    )
    rounds = sorted({line["round"] for line in lines})
    summary = engine.summarize_phases(rounds, metrics, 1 / num_classes)
    has_recovered = {name: values >= 0 for name, values in summary.items() if name.endswith("recovery")}
    record = {"starts": about["starts"]}
    for name, values in summary.items():
        is_counted = has_recovered.get(name, np.ones_like(values, bool))
        by_phase = list(zip(values.T, is_counted.T, strict=True))
        record[name] = {key: [_over_seeds(over, *phase) for phase in by_phase] for key, over in _OVER}
    counts = {name.replace("recovery", "num_recovered"): x.sum(axis=0).tolist() for name, x in has_recovered.items()}
    return record | counts


_OVER = (("mean", np.mean), ("std", np.std))


def _over_seeds(over: Callable[[np.ndarray], Any], values: np.ndarray, is_counted: np.ndarray) -> float:
    return float(over(values[is_counted])) if is_counted.any() else np.nan


def accuracy_heat(about: Mapping[str, Any], lines: Sequence[Json]) -> Heat:
    """The accuracy in each phase (down) over rounds (across), mean over seeds."""
    accuracy = columns(about, lines)
    assert accuracy is not None
    first = sorted(set(about["first_equal"]))
    names = [f"{phase} (round {about['starts'][phase]})" for phase in first]
    rounds = sorted({line["round"] for line in lines})
    return Heat(rounds, names, accuracy.mean(axis=0).T[first].tolist(), "level", "accuracy")


def draw_phases(about: Mapping[str, Any], lines: Sequence[Json]) -> View:
    """The accuracy of a run on the data of the next round and on all phases so far, and in each phase over rounds."""
    rounds = sorted({line["round"] for line in lines})
    curves = []
    for number, (name, title) in enumerate(PHASE_CURVES.items()):
        seeds = [[line[name] for line in lines if line["round"] == round] for round in rounds]
        curves.append(mean_curve(title, number, rounds, seeds))
    over_rounds = Panel("", "round", "accuracy", curves, (0, 1), is_wide=True, x_lines=tuple(about["starts"][1:]))
    return View("", [over_rounds, Panel("", "round", "phase", [accuracy_heat(about, lines)], is_wide=True)])
