"""Terminal output of a run: its costs before it begins, its progress, and its results."""

import contextlib
import logging
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table

from fedjax_het.cli.configuration import privacy, record_privacy
from fedjax_het.cli.configuration.privacy import FIGURE
from fedjax_het.cli.runs import data_usage, records
from fedjax_het.cli.runs.setting_text import format_bytes
from fedjax_het.engine import METRICS, RunCost, Simulation, main_score
from fedjax_het.engine.parallel.compilation import COMPILATION_LOG

_MAX_FIGURES = 40
_DETAILS = ("_weighted", "_min", "_max")
_GROUPS = ("test", "personal", "clients", "newcomers", "unseen")


def describe_costs(
    simulation: Simulation, settings: Mapping[str, Any], resolved: Mapping[str, Any], directory: Path
) -> str:
    """Describe a run before it begins: its parts, the examples that it is measured on, and its costs."""
    facts, federation = simulation.cost, simulation.federation
    partition = records.describe_partition(federation)
    groups = data_usage.measured_groups(partition, simulation.has_personal, settings["personal_on_test"])
    usage = data_usage.describe_groups(partition, groups)
    if "personal_test/" in usage and federation.test is not None:
        predictions = f"{facts.num_clients:,} x {int(federation.test.count):,} predictions per evaluation"
        usage["personal_test/"] += f" ({predictions}; personal_on_test=False does without)"
    lowest, highest = facts.steps_per_client
    steps = f"{lowest}" if lowest == highest else f"{lowest} to {highest}"
    down, up = format_bytes(facts.bytes_down), format_bytes(facts.bytes_up)
    bits = f" ({facts.bits_up:,.0f} bits)" if settings.get("uplink") else ""
    if facts.bytes_polled:
        bits += f" (and {format_bytes(facts.bytes_polled)} up per polled client, at most {facts.cohort_size} per round)"
    opening = ""
    if facts.bytes_opening:
        num_rounds = -(-facts.num_clients // facts.cohort_size)
        answer = f"{down} down, {format_bytes(facts.bytes_opening)} up, per client"
        opening = f"; before training, a survey of all clients in {num_rounds} rounds: {answer}"
    frozen = f", and {facts.num_frozen:,} that clients do not train" if facts.num_frozen else ""
    rows = {
        "clients": f"{facts.num_clients}; {describe_cohort(facts, settings)}",
        **usage,
        "algorithm": settings["algorithm"]["name"],
        "model": f"{settings['model']['name']}, {facts.num_parameters:,} parameters{frozen}",
        "local steps": f"{steps} per client and round",
        "traffic": f"{down} down, {up} up{bits}, per client and round{opening}",
        **({"privacy": privacy.describe(settings, federation.num_clients)} if "privacy" in settings else {}),
        **_describe_record_privacy(simulation, settings),
        "layout": resolved["reason"] if resolved["seconds_a_round"] else resolved["layout"],
        **({"convolutions": resolved["conv"]} if resolved["conv"] else {}),
        "compiled in": f"{facts.compile_seconds:.1f} s",
        "memory": "\n".join(_describe_memory(facts, resolved)),
        "directory": str(directory),
    }
    return _in_two_columns(rows)


def _describe_record_privacy(simulation: Simulation, settings: Mapping[str, Any]) -> dict[str, str]:
    if record_privacy.TABLE not in settings:
        return {}
    return {"record privacy": record_privacy.account_of(simulation, settings).describe()}


def describe_data_usage(partition: Mapping[str, Any], groups: Sequence[str]) -> str:
    """Describe the examples that a run trains on and that groups of its figures are measured on."""
    return _in_two_columns(data_usage.describe_groups(partition, groups))


def describe_cohort(facts: RunCost, settings: Mapping[str, Any]) -> str:
    """Describe how many clients take part at a time; a cohort may have more places than clients."""
    if rule := settings.get("asynchronous"):
        return f"up to {rule['concurrency']} train at a time; the server steps after {facts.cohort_size} updates"
    if facts.mean_cohort_size != facts.cohort_size:
        return f"{facts.mean_cohort_size:g} per round on average, and at most {facts.cohort_size}"
    return f"{facts.cohort_size} per round"


def _in_two_columns(rows: Mapping[str, str]) -> str:
    """Format names and values side by side, wrapped at the width of the terminal."""
    width = max(12, *map(len, rows)) + 1
    room = max(shutil.get_terminal_size().columns - width, 40)
    lines = []
    for name, value in rows.items():
        texts = [text for line in value.splitlines() for text in textwrap.wrap(line, room, break_on_hyphens=False)]
        lines += [f"{head:<{width}}{text}" for head, text in zip([name, *[""] * len(texts)], texts, strict=False)]
    return "\n".join(lines)


def _describe_memory(facts: RunCost, resolved: Mapping[str, Any]) -> Iterator[str]:
    """Describe the peak memory of a device and what it must hold."""
    held = facts.held_bytes
    peak, total = (format_bytes(size) for size in (facts.peak_bytes, sum(held.values())))
    yield f"{peak} peak memory per device, including {total} for:"
    yield ", ".join(f"{name} {format_bytes(size)}" for name, size in held.items())
    for name in ("client_states", "examples"):
        if resolved[name] != "device":
            yield f"{name.replace('_', ' ')}: {resolved[name]}"


class ProgressDisplay:
    """Display of the rounds done: a progress bar on a terminal, plain lines elsewhere."""

    def __init__(self, progress: Progress | None, done: int, rounds: int, interval: float):
        self._progress, self._first, self._rounds, self._interval = progress, done, rounds, interval
        self._begun = self._last = time.monotonic()

    def show(self, done: int, text: str) -> None:
        """Show the number of rounds done, a description, and the time left."""
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done, description=text)
        elif (now := time.monotonic()) - self._last >= self._interval:
            self._last = now
            num, left = done - self._first, ""
            if 0 < num < self._rounds - self._first:
                seconds = (now - self._begun) / num * (self._rounds - done)
                left = f", {timedelta(seconds=round(seconds))} left"
            print(f"round {done}/{self._rounds}  {text}{left}", flush=True)

    def tell(self, text: str) -> None:
        (print if self._progress is None else self._progress.console.print)(text)

    def warn(self, text: str) -> None:
        self.tell(f"warning: {text}")


@contextmanager
def show_progress(done: int, rounds: int, interval: float = 0.0) -> Iterator[ProgressDisplay]:
    """Display the rounds from `done` on.

    Args:
        done: The rounds before.
        rounds: All rounds, of several runs together if other processes train them.
        interval: The seconds between two lines if the output is not a terminal.
    """
    if not sys.stdout.isatty():
        yield ProgressDisplay(None, done, rounds, interval)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, speed_estimate_period=3600) as progress:
        progress.add_task("", total=rounds, completed=done)
        yield ProgressDisplay(progress, done, rounds, interval)


def describe_round(figures: Mapping[str, np.ndarray], seconds: float) -> str:
    """Describe an evaluated round: the training loss, a score, epsilon where it is counted, and the seconds it took."""
    names = [*format_headline(figures), *({FIGURE} & figures.keys())]
    return "  ".join([*(f"{name} {np.mean(figures[name]):.4f}" for name in names), f"{seconds:.3f} s per round"])


@contextmanager
def show_compilation(interval: float = 30.0) -> Iterator[None]:
    """Display which program is being compiled, and for how long.

    Args:
        interval: The seconds between two lines on the same program if the output is not a terminal.
    """
    begun, current, is_done = time.monotonic(), [""], threading.Event()
    progress = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True)
    progress.add_task("compiling")

    def show(message: str) -> None:
        current[0] = message
        progress.update(progress.task_ids[0], description=current[0])
        if not sys.stdout.isatty():
            print(f"{current[0]} ...", flush=True)

    def repeat() -> None:
        while not is_done.wait(interval):
            print(f"{current[0] or 'tracing'} ... {time.monotonic() - begun:.0f} s", flush=True)

    with contextlib.ExitStack() as stack:
        stack.enter_context(_log_handler(COMPILATION_LOG, show))
        if sys.stdout.isatty():
            stack.enter_context(progress)
        else:
            reminder = threading.Thread(target=repeat, daemon=True)
            reminder.start()
            stack.callback(reminder.join)
            stack.callback(is_done.set)
        yield


@contextmanager
def _log_handler(log: logging.Logger, show: Callable[[str], None]) -> Iterator[None]:
    """Hand the messages of a logger to a function, and to no other handler."""
    handler, level, propagate = logging.Handler(), log.level, log.propagate
    handler.emit = lambda record: show(record.getMessage())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate


def format_headline(figures: Mapping[str, Any]) -> list[str]:
    """Return the names of the training loss and of the first main score that there is."""
    score = main_score(figures)
    endings = (f"/{score}", f"/{score}_mean")
    scores = [name for group in _GROUPS for name in figures if name.startswith(group) and name.endswith(endings)]
    return ["train/loss", *scores[:1]]


def tabulate_results(summary: Mapping[str, Any]) -> Table:
    """Tabulate the figures of the last round, and of the selected rounds where there are any.

    Mean ± standard deviation over several seeds. If there are many figures, details are left out.
    """
    names = list(summary["final"])
    table = Table(Column("figure", overflow="fold"), f"after round {summary['rounds']}")
    if len(names) > _MAX_FIGURES:
        details = (*_DETAILS, *(f"/{metric}_{index}" for metric in METRICS for index in ("jain", "gini")))
        names = [name for name in names if not (name.endswith(details) or "/iou" in name)]
        table.caption = f"all {len(summary['final'])} figures: summary.json"
    columns = [summary["final"]]
    if selected := summary.get("selected"):
        rounds = ", ".join(map(str, selected["rounds"]))
        table.add_column(f"best on validation (round {rounds})")
        columns.append(selected["figures"])
    for name in names:
        table.add_row(name, *(_format_value(name, column[name]["mean"], column[name]["std"]) for column in columns))
    return table


def _format_value(name: str, mean: float | None, std: float | None) -> str:
    if mean is None:
        return "not finite"
    if name == "traffic/bits_up":
        return f"{mean:,.0f} bits"
    if name.startswith("traffic/"):
        return format_bytes(mean)
    form = "g" if name.startswith("num_") else ".4f"
    return f"{mean:{form}}" if std is None else f"{mean:{form}} ± {std:{form}}"
