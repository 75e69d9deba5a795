"""What a run says on the terminal: what it will cost, how far it is, what came out."""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedjax_het.engine import RunCost, Simulation

from ..runs import data_usage, records

_MOST_FIGURES = 40
_DETAILS = ("_weighted", "_min", "_max")
_GROUPS = ("test", "personal", "clients", "newcomers", "unseen")


def print_cost(simulation: Simulation, settings: Mapping[str, Any], choices: Mapping[str, Any], directory: Path) -> str:
    """What is about to run, what its figures will be measured on and what it costs, line by line."""
    facts, federation = simulation.facts, simulation.federation
    partition, has_personal = records.describe_partition(federation), simulation.has_personal
    groups = data_usage.measured_groups(partition, has_personal, settings["personal_on_test"])
    usage = data_usage.rows(partition, groups)
    if "personal_test" in groups:
        predictions = f"{facts.num_clients:,} x {partition['test']:,} predictions an evaluation"
        usage["personal_test/"] += f" ({predictions}; personal_on_test=False does without)"
    least, most = facts.steps_per_client
    steps = f"{least}" if least == most else f"{least} to {most}"
    num_examples = len(federation.examples.labels)
    rows = {
        "data": f"{federation.name}, {num_examples:,} examples, {federation.num_classes} classes",
        "clients": f"{facts.num_clients}, of which {facts.cohort_size} a round",
        **usage,
        "algorithm": settings["algorithm"]["name"],
        "model": f"{settings['model']['name']}, {facts.num_parameters:,} parameters",
        "local steps": f"{steps} a client and round",
        "traffic": f"{_size(facts.bytes_down)} down, {_size(facts.bytes_up)} up, a client and round",
        "layout": "\n".join(_wording(choices)),
        "compiled in": f"{facts.compile_seconds:.1f} s",
        "memory": "\n".join(_memory(facts, choices)),
        "directory": str(directory),
    }
    return _in_two_columns(rows)


def print_data_usage(partition: Mapping[str, Any], groups: Sequence[str]) -> str:
    """What trains and what groups of figures are measured on, line by line."""
    return _in_two_columns(data_usage.rows(partition, groups))


def _in_two_columns(rows: Mapping[str, str]) -> str:
    """Names, and values beside them, wrapped where the terminal ends."""
    width = max(12, *map(len, rows)) + 1
    room = max(shutil.get_terminal_size().columns - width, 40)
    lines = []
    for name, value in rows.items():
        texts = [text for line in value.splitlines() for text in textwrap.wrap(line, room, break_on_hyphens=False)]
        lines += [f"{head:<{width}}{text}" for head, text in zip([name, *[""] * len(texts)], texts, strict=False)]
    return "\n".join(lines)


def _wording(choices: Mapping[str, Any]) -> Iterator[str]:
    yield from choices["why"].splitlines() if choices["seconds_a_round"] else [choices["layout"]]
    if choices["conv"]:
        yield f"convolutions: {choices['conv']}"


def _memory(facts: RunCost, choices: Mapping[str, Any]) -> Iterator[str]:
    """What lies on each device at the most, and what of it has to."""
    held = facts.held_bytes
    yield f"{_size(facts.peak_bytes)} on each device at the most, where {_size(sum(held.values()))} must be held:"
    yield ", ".join(f"{name} {_size(size)}" for name, size in held.items())
    if choices["client_states"] != "device":
        yield f"client states: {choices['client_states']}"
    if choices["examples"] != "device":
        yield f"examples: {choices['examples']}"


def _size(num_bytes: float | None) -> str:
    if num_bytes is None:
        return "unknown"
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"


class Tracker:
    """Tells of every stop: a progress bar on a terminal, a plain line elsewhere."""

    def __init__(self, progress: Progress | None, rounds: int):
        self._progress, self._rounds = progress, rounds

    def show(self, round: int, figures: Mapping[str, np.ndarray], seconds: float) -> None:
        text = "  ".join(f"{name} {np.mean(figures[name]):.4f}" for name in format_headline(figures))
        text += f"  {seconds:.3f} s a round"
        if self._progress is None:
            print(f"round {round}/{self._rounds}  {text}", flush=True)
        else:
            self._progress.update(self._progress.task_ids[0], completed=round, description=text)

    def warn(self, text: str) -> None:
        (print if self._progress is None else self._progress.console.print)(f"warning: {text}")


@contextmanager
def print_trackers(done: int, rounds: int) -> Iterator[Tracker]:
    """A Tracker for the rounds from `done` on."""
    if not sys.stdout.isatty():
        yield Tracker(None, rounds)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns) as progress:
        progress.add_task("", total=rounds, completed=done)
        yield Tracker(progress, rounds)


def format_headline(figures: Mapping[str, Any]) -> list[str]:
    """The two figures worth a glance: the training loss, and the first score that there is, Dice before accuracy."""
    for score in ("dice", "accuracy"):
        endings = (f"/{score}", f"/{score}_mean")
        found = [name for group in _GROUPS for name in figures if name.startswith(group) and name.endswith(endings)]
        if found:
            return ["train/loss", found[0]]
    return ["train/loss"]


def print_results(summary: Mapping[str, Any]) -> Table:
    """The last round's figures, and those of the rounds that did best on validation examples where there are any; mean
    ± standard deviation where there are several seeds. Where they are many, the telling ones."""
    names = list(summary["final"])
    shown = Table("figure", f"after round {summary['rounds']}")
    if len(names) > _MOST_FIGURES:
        names = [name for name in names if not (name.endswith(_DETAILS) or "/iou" in name)]
        shown.caption = f"all {len(summary['final'])} figures: summary.json"
    columns = [summary["final"]]
    if chosen := summary.get("selected"):
        rounds = ", ".join(map(str, chosen["rounds"]))
        shown.add_column(f"best on validation (round {rounds})")
        columns.append(chosen["figures"])
    for name in names:
        shown.add_row(name, *(_shown(name, column[name]["mean"], column[name]["std"]) for column in columns))
    return shown


def _shown(name: str, mean: float | None, std: float | None) -> str:
    if name.startswith("traffic/"):
        return _size(mean)
    return mean_and_std(mean, std, "g" if name.startswith("num_") else ".4f")


def mean_and_std(mean: float | None, std: float | None, form: str = ".4f") -> str:
    if mean is None:
        return "not finite"
    return f"{mean:{form}}" if std is None else f"{mean:{form}} ± {std:{form}}"


def paths(directory: Path, names: Sequence[str]) -> str:
    return "\n".join(["written:", *(f"  {directory / name}" for name in names)])
