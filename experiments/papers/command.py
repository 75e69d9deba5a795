"""The command that all papers share: train what is missing, and write what was printed beside what came out."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

from experiments import arguments, cells, files, plots
from experiments.cells import Cell
from experiments.papers import comparison
from experiments.papers.comparison import Entry
from experiments.papers.plan import Experiment, Settings
from experiments.rundir import RunDirectory
from fedjax_het.errors import InputError


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
    parser.add_argument("--data", help="the data set's path")
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
    Console().print(Markdown(text))
    return int(not done)


def run(
    experiment: Experiment, scale: str, data: str | None, common: Settings, workdir: Path, what: str
) -> tuple[bool, str]:
    """(whether all runs are done, the comparison as Markdown). What is finished is not trained again."""
    chosen = experiment.scales[scale]
    if chosen.path and not data:
        raise InputError(f"--data: this scale reads {chosen.path}. Give its path.")
    grid = experiment.cells(scale, {**common, **({"data.path": data} if data else {})})
    folder = workdir / scale
    unique = list({cell.name: cell for cell in grid.values()}.values())
    cells.check(unique, folder)
    directories = _train(unique, folder)
    entries = _read(experiment, scale, grid, directories)
    text = comparison.markdown(experiment, scale, entries)
    files.write(workdir / f"{what}-{scale}.md", text)
    files.write(workdir / f"{what}-{scale}.csv", comparison.comma_separated(entries))
    if experiment.is_figure:
        points = [(entry.measure, entry.row, float(entry.column), entry.seeds) for entry in entries]
        files.write(workdir / f"{what}-{scale}.png", lambda path: plots.against(points, "alpha", path))
    return all(entry.seeds for entry in entries), text


def _train(unique: Sequence[Cell], folder: Path) -> dict[str, RunDirectory]:
    """{cell's name: its directory}, of those that are done."""
    done = {}
    for number, outcome in enumerate(cells.train(unique, folder), 1):
        seconds = f", {outcome.seconds:.0f} s" if outcome.seconds else ""
        print(f"[{number}/{len(unique)}] {outcome.cell.name}: {outcome.status}{seconds}", flush=True)
        if outcome.is_done:
            done[outcome.cell.name] = RunDirectory(outcome.directory)
    return done


def _read(
    experiment: Experiment, scale: str, grid: Mapping[tuple[str, str], Cell], done: Mapping[str, RunDirectory]
) -> list[Entry]:
    columns, entries = list(experiment.scales[scale].columns), []
    for name, measure in experiment.measures.items():
        for (row, column), cell in grid.items():
            values = experiment.printed.get(name, {}).get(row, ())
            place = columns.index(column)
            printed = values[place] if place < len(values) else None
            entries.append(Entry(name, row, column, printed, measure(done[cell.name]) if cell.name in done else []))
    return entries
