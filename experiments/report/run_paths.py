"""Which runs a command line means."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_het.errors import InputError

from ..runs.run_files import DamagedFileError, read_json
from .run_reader import MEND, RunData, read


class Absent(NamedTuple):
    """A cell of a grid without a run, and what became of it."""

    name: str
    status: str


def runs(paths: Sequence[Path]) -> tuple[list[RunData], list[Absent]]:
    """All runs of run directories and of grids, each once, in the order given.

    A grid is a directory of `experiments.compare`: the cells in its grid.json, or, before there is one, the runs in it.
    Raises InputError for a path that holds no run, and for files that are not of this version.
    """
    found: dict[Path, RunData] = {}
    absent: list[Absent] = []
    for path in paths:
        directories, without = directories_of(path)
        absent += without
        for directory in directories:
            if directory.resolve() not in found:
                found[directory.resolve()] = read(directory)
    if not found:
        raise InputError(f"{', '.join(map(str, paths))}: no cell has been started. Train one first.")
    return list(found.values()), absent


def _grid(path: Path) -> Any:
    try:
        return read_json(path)
    except DamagedFileError as error:
        raise InputError(f"{error} The command `compare` writes it anew.") from error


def directories_of(path: Path) -> tuple[list[Path], list[Absent]]:
    """(the run directories that a path stands for, the cells that have none). Raises InputError where it is neither."""
    if (path / "config.json").is_file():
        return [path], []
    grid = _grid(path / "grid.json")
    if grid is None:
        if inside := sorted(each.parent for each in path.glob("*/config.json")):
            return inside, []
        what = "has no config.json and no grid.json" if path.is_dir() else "is no directory"
        raise InputError(f"{path}: {what}. Name a directory that `train` or `compare` has written.")
    if not isinstance(grid, list) or not all(
        isinstance(cell, dict) and {"cell", "status"} <= set(cell) for cell in grid
    ):
        raise InputError(f"{path / 'grid.json'}: a list of cells was expected. {MEND}")
    here = [cell for cell in grid if (path / cell["cell"] / "config.json").is_file()]
    absent = [Absent(cell["cell"], cell["status"]) for cell in grid if cell not in here]
    return [path / cell["cell"] for cell in here], absent
