"""Cells of a grid, trained in processes of their own: those that differ in numbers alone together, as one program."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments import files
from experiments.cells import Cell
from experiments.rundir import RunDirectory

LOG = "train.log"
MOST = 8  # cells in one program; their memory adds up


class Outcome(NamedTuple):
    cell: Cell
    directory: Path
    status: str  # "done", "was done", or what it failed with
    seconds: float  # of its process
    num_beside: int = 0  # cells that the process trained besides

    @property
    def is_done(self) -> bool:
        return self.status in ("done", "was done")


def train(cells: Sequence[Cell], workdir: Path, most: int = MOST) -> Iterator[Outcome]:
    """In processes of their own: what ends one, a lack of memory say, does not end the rest.

    most: cells in one process. Where it fails, each of them is tried by itself.
    """
    waiting = []
    for cell in cells:
        if _is_done(cell, workdir):
            yield Outcome(cell, workdir / cell.name, "was done", 0.0)
        else:
            waiting.append(cell)
    for group in groups(waiting, most):
        log, began = workdir / group[0].name / LOG, time.perf_counter()
        if len(group) > 1:
            _started(_of_group(group, workdir), log)
        seconds = time.perf_counter() - began
        for cell in group:
            if _is_done(cell, workdir):
                yield Outcome(cell, workdir / cell.name, "done", seconds, len(group) - 1)
            else:
                yield _alone(cell, workdir / cell.name)


def groups(cells: Sequence[Cell], most: int) -> list[list[Cell]]:
    """Cells that differ in their algorithm's numbers and the seed alone, at most so many together."""
    alike: dict[str, list[Cell]] = {}
    for cell in cells:
        alike.setdefault(_all_but_numbers(cell), []).append(cell)
    return [each[i : i + most] for each in alike.values() for i in range(0, len(each), most)]


def _all_but_numbers(cell: Cell) -> str:
    chosen = dict(cell.settings(), seed=None)
    is_number = lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)  # noqa: E731
    of_algorithm = {key: None if is_number(value) else value for key, value in chosen["algorithm"].items()}
    return json.dumps(chosen | {"algorithm": of_algorithm}, sort_keys=True, default=str)


def _is_done(cell: Cell, workdir: Path) -> bool:
    return RunDirectory(workdir / cell.name).check(cell.settings(), is_thorough=False).is_complete


def _alone(cell: Cell, directory: Path) -> Outcome:
    began, overrides = time.perf_counter(), {**cell.common, **cell.own}
    flags = [f"--config={cell.config}", f"--workdir={directory}"]
    flags += [f"--config.{key}={text}" for key, text in overrides.items()]
    code = _started(["experiments.train", *flags], directory / LOG)
    status = "done" if code == 0 else _why(directory / LOG, code)
    return Outcome(cell, directory, status, time.perf_counter() - began)


def _of_group(cells: Sequence[Cell], workdir: Path) -> list[str]:
    runs = [
        {"config": str(cell.config), "set": {**cell.common, **cell.own}, "workdir": str(workdir / cell.name)}
        for cell in cells
    ]
    path = workdir / cells[0].name / "together.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, files.to_json(runs, indent=2) + "\n")
    return ["experiments.together", str(path)]


def _started(command: Sequence[str], log: Path) -> int:
    """The exit status of a module of ours."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        run = [sys.executable, "-m", *command]
        return subprocess.run(run, stdout=file, stderr=subprocess.STDOUT, check=False).returncode


def told(cells: Sequence[Cell], workdir: Path, most: int = MOST) -> Iterator[Outcome]:
    """`train`, a line on the terminal for each."""
    for number, outcome in enumerate(train(cells, workdir, most), 1):
        seconds = f", {outcome.seconds:.0f} s" if outcome.seconds else ""
        beside = f" together with {outcome.num_beside} more" if outcome.num_beside else ""
        print(f"[{number}/{len(cells)}] {outcome.cell.name}: {outcome.status}{seconds}{beside}", flush=True)
        yield outcome


def _why(log: Path, code: int) -> str:
    """The log's last line that says an error, and else its last."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "rror:" in line]
    return f"exit status {code}: {(errors or lines or ['nothing was said'])[-1]}"


def describe(outcome: Outcome) -> dict[str, Any]:
    """A record for the grid's own file."""
    return {
        "cell": outcome.cell.name,
        "config": str(outcome.cell.config),
        "set": {**outcome.cell.common, **outcome.cell.own},
        "status": outcome.status,
    }
