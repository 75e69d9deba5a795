"""The command that all papers share: train what is missing, and write what was printed beside what came out."""

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments import arguments, cells, files, outcomes, plots
from experiments.cells import Cell
from experiments.papers import comparison
from experiments.papers.comparison import Entry
from experiments.papers.plan import ROOT, Experiment, Settings
from experiments.rundir import RunDirectory
from fedjax_het.errors import InputError, nearest


def main(argv: Sequence[str], paper: str, experiments: Mapping[str, Experiment]) -> int:
    """The exit status: 0 = all is done, 1 = some runs failed, 2 = something to mend, said before the first."""
    own, common = arguments.apart(argv)
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.papers.{paper}",
        description="Train a table or figure of the paper, and compare.",
        epilog="--config.<key>=<value> sets a key in all runs; --config.model.pretrained=FILE, say.",
    )
    parser.add_argument("--what", required=True, choices=experiments, help="the table or figure")
    parser.add_argument("--scale", default="cpu", choices=("smoke", "cpu", "paper"), help="how large")
    parser.add_argument("--data", action="append", default=[], metavar="PATH", help="NAME=PATH where several are read")
    parser.add_argument("--workdir", type=Path, default=Path("runs") / "papers" / paper, help="of runs and results")
    known = parser.parse_args(own)
    experiment = experiments[known.what]
    try:
        done, text = run(experiment, known.scale, known.data, common, known.workdir, known.what)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    print(text)
    return int(not done)


def run(
    experiment: Experiment, scale: str, data: Sequence[str], common: Settings, workdir: Path, what: str
) -> tuple[bool, str]:
    """(whether all runs are done, the comparison as Markdown). What is finished is not trained again."""
    if scale not in experiment.scales:
        raise InputError(f"--scale={scale}: '{what}' is there at {', '.join(experiment.scales)}. Take one of these.")
    grid = experiment.cells(scale, common, _paths(experiment.scales[scale].data, data))
    unique = list({cell.name: cell for cell in grid.values()}.values())
    folder = home(unique[0], scale, workdir)
    cells.check(unique, folder)
    ended = outcomes.told(unique, folder)
    directories = {each.cell.name: RunDirectory(each.directory) for each in ended if each.is_done}
    entries = _read(experiment, grid, directories)
    text = comparison.markdown(experiment, scale, entries)
    files.write(workdir / f"{what}-{scale}.md", text)
    files.write(workdir / f"{what}-{scale}.csv", comparison.comma_separated(entries))
    if experiment.draw:
        runs = {place: directories[cell.name] for place, cell in grid.items() if cell.name in directories}
        with plots.attempt(picture := workdir / f"{what}-{scale}.png"):
            files.write(picture, lambda path: experiment.draw(entries, runs, path))
    return all(entry.seeds for entry in entries), text


def home(cell: Cell, scale: str, workdir: Path) -> Path:
    """The folder of all runs with this cell's config and common settings: tables that have both share their runs."""
    shared = json.dumps([str(cell.config.relative_to(ROOT)), dict(cell.common)], sort_keys=True)
    return workdir / f"{scale}-{hashlib.sha256(shared.encode()).hexdigest()[:8]}"


def _read(
    experiment: Experiment, grid: Mapping[tuple[str, str], Cell], done: Mapping[str, RunDirectory]
) -> list[Entry]:
    entries = []
    for name, measure in experiment.measures.items():
        for row in experiment.rows:
            found = []
            for column, cell in ((column, cell) for (of, column), cell in grid.items() if of == row):
                seeds = measure(done[cell.name], column) if cell.name in done else []
                found.append(Entry(name, row, column, experiment.value(name, row, column), seeds))
            entries += found
            if experiment.average:
                printed = experiment.value(name, row, experiment.average)
                entries.append(Entry(name, row, experiment.average, printed, _mean(found)))
    return entries


def _mean(entries: Sequence[Entry]) -> list[float]:
    """Over columns, seed by seed; empty where one of them failed."""
    seeds = [entry.seeds for entry in entries]
    return [sum(values) / len(values) for values in zip(*seeds, strict=True)] if all(seeds) else []


def _paths(needed: Mapping[str, str], given: Sequence[str]) -> dict[str, str]:
    """{name: path} from --data=PATH, where one is needed, or --data=NAME=PATH for each."""
    if len(needed) == 1 and len(given) == 1 and not given[0].startswith(f"{next(iter(needed))}="):
        return {next(iter(needed)): given[0]}
    paths = dict(each.partition("=")[::2] for each in given)
    for name, words in needed.items():
        if not paths.get(name):
            form = "PATH" if len(needed) == 1 else f"{name}=PATH"
            raise InputError(f"--data: this scale reads {words}. Give --data={form}.")
    if extra := next((name for name in paths if name not in needed), None):
        raise InputError(f"--data={extra}: nothing here reads it. {nearest(extra, needed)}")
    return paths
