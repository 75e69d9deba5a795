"""A grid of settings: every cell is an ordinary run, in a directory of its own."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_het.errors import InputError

from ..configuration import build, settings
from ..runs.run_directory import RunDirectory
from ..runs.setting_text import short

UNSEEN = "data.unseen"
SEED = "seed"
_NAME = "algorithm.name"


class GridRun(NamedTuple):
    """config, and what is set besides: the same for all cells, and this cell's own part of the grid."""

    config: Path
    common: Mapping[str, str]  # {"rounds": "20"}
    own: Mapping[str, str]  # {"data.unseen": "sketch"}

    @property
    def name(self) -> str:
        """The cell's directory, "fedld,lam=0.1,unseen=sketch"."""
        parts = [f"{short(key)}={text}" for key, text in self.own.items()]
        return re.sub(r"[^\w.=,+-]+", "_", ",".join([self.config.stem, *parts]))

    def settings(self) -> settings.Settings:
        return settings.complete_settings(settings.load_settings(self.config), {**self.common, **self.own})[0]


def make_grid(configs: Sequence[Path], common: Mapping[str, str], varied: Mapping[str, Sequence[str]]) -> list[GridRun]:
    """Every config with every combination of what is varied. `data.unseen` varied over "all" leaves out each of the
    config's domains in turn.

    Raises InputError for two cells of one name, and for data of one domain where all are to be left out.
    """
    cells = []
    for config in configs:
        choices = dict(varied)
        if tuple(choices.get(UNSEEN, ())) == ("all",):
            choices[UNSEEN] = _domains(GridRun(config, common, {}))
        cells += [
            GridRun(config, common, dict(zip(choices, each, strict=True)))
            for each in itertools.product(*choices.values())
        ]
    names = [cell.name for cell in cells]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"two cells are called '{twice}'. Give configs with different file names, each value once.")
    return cells


def label_runs(cells: Sequence[GridRun]) -> list[str]:
    """Each cell's row in a table: what sets it apart from other rows, but for the domain left out and the seed."""
    several = len({cell.config for cell in cells}) > 1

    def label(cell: GridRun) -> str:
        varied = [f"{short(key)}={text}" for key, text in cell.own.items() if key not in (UNSEEN, SEED, _NAME)]
        named = [cell.own[_NAME]] if _NAME in cell.own else []
        return " ".join(([cell.config.stem] if several or not named else []) + named + varied)

    return [label(cell) for cell in cells]


def _domains(cell: GridRun) -> tuple[str, ...]:
    dataset = build.read_dataset(cell.settings()["data"])
    if len(dataset.domain_names) < 2:
        raise InputError(f"--vary=data.unseen=all: {dataset.name} has one domain, and nothing would be left.")
    return dataset.domain_names


def check_runs(cells: Sequence[GridRun], workdir: Path) -> None:
    """Raises InputError for settings that cannot be read, and for directories of other runs, cell by cell."""
    for cell in cells:
        try:
            RunDirectory(workdir / cell.name).check(cell.settings())
        except InputError as error:
            raise InputError(f"{cell.name}: {error}") from error
