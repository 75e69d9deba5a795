"""Cells of a grid, trained in processes of their own: those that can be one program together."""

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import module_command, module_environment
from ..configuration import build
from ..runs import json_files
from ..runs.run_directory import RunDirectory
from .grid import GridRun

LOG = "train.log"
MOST = 8  # cells in one program; their memory adds up


class GridResult(NamedTuple):
    cell: GridRun
    directory: Path
    status: str  # "done", "was done", or what it failed with
    seconds: float  # of its process
    num_beside: int = 0  # cells that the process trained besides

    @property
    def is_done(self) -> bool:
        return self.status in ("done", "was done")


def run_grid_silently(cells: Sequence[GridRun], workdir: Path, most: int = MOST) -> Iterator[GridResult]:
    """In processes of their own: what ends one, a lack of memory say, does not end the rest.

    most: cells in one process. Where it fails, each of them is tried by itself.
    """
    waiting = []
    for cell in cells:
        if _is_done(cell, workdir):
            yield GridResult(cell, workdir / cell.name, "was done", 0.0)
        else:
            waiting.append(cell)
    for group in group_runs(waiting, most):
        log, began = workdir / group[0].name / LOG, time.perf_counter()
        if len(group) > 1:
            _run_command(_run_group(group, workdir), log)
        seconds = time.perf_counter() - began
        for cell in group:
            if _is_done(cell, workdir):
                yield GridResult(cell, workdir / cell.name, "done", seconds, len(group) - 1)
            else:
                yield _run_alone(cell, workdir / cell.name)


def group_runs(cells: Sequence[GridRun], most: int) -> list[list[GridRun]]:
    """Cells with the same `build.common_settings`, at most so many together."""
    of_program: dict[str, list[GridRun]] = {}
    for cell in cells:
        common = json.dumps(build.common_settings(cell.settings()), sort_keys=True, default=str)
        of_program.setdefault(common, []).append(cell)
    return [each[i : i + most] for each in of_program.values() for i in range(0, len(each), most)]


def _is_done(cell: GridRun, workdir: Path) -> bool:
    return RunDirectory(workdir / cell.name).check(cell.settings(), is_thorough=False).is_complete


def _run_alone(cell: GridRun, directory: Path) -> GridResult:
    began, overrides = time.perf_counter(), {**cell.common, **cell.own}
    flags = [f"--config={cell.config}", f"--workdir={directory}"]
    flags += [f"--config.{key}={text}" for key, text in overrides.items()]
    code = _run_command(["train", *flags], directory / LOG)
    status = "done" if code == 0 else _find_reason(directory / LOG, code)
    return GridResult(cell, directory, status, time.perf_counter() - began)


def _run_group(cells: Sequence[GridRun], workdir: Path) -> list[str]:
    runs = [
        {"config": str(cell.config), "set": {**cell.common, **cell.own}, "workdir": str(workdir / cell.name)}
        for cell in cells
    ]
    path = workdir / cells[0].name / "together.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    json_files.write(path, json_files.to_json(runs, indent=2) + "\n")
    return ["sweep.batched", str(path)]


def _run_command(command: Sequence[str], log: Path) -> int:
    """The exit status of a module of ours."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        run, environment = module_command(*command), module_environment()
        return subprocess.run(run, stdout=file, stderr=subprocess.STDOUT, env=environment, check=False).returncode


def run_grid(cells: Sequence[GridRun], workdir: Path, most: int = MOST) -> Iterator[GridResult]:
    """`train`, a line on the terminal for each."""
    for number, outcome in enumerate(run_grid_silently(cells, workdir, most), 1):
        seconds = f", {outcome.seconds:.0f} s" if outcome.seconds else ""
        beside = f" together with {outcome.num_beside} more" if outcome.num_beside else ""
        print(f"[{number}/{len(cells)}] {outcome.cell.name}: {outcome.status}{seconds}{beside}", flush=True)
        yield outcome


def _find_reason(log: Path, code: int) -> str:
    """The log's last line that says an error, and else its last."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "rror:" in line]
    return f"exit status {code}: {(errors or lines or ['nothing was said'])[-1]}"


def result_record(outcome: GridResult) -> dict[str, Any]:
    """A record for the grid's own file."""
    return {
        "cell": outcome.cell.name,
        "config": str(outcome.cell.config),
        "set": {**outcome.cell.common, **outcome.cell.own},
        "status": outcome.status,
    }
