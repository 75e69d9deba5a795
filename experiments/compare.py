"""Train a grid of settings, and lay the results side by side:

    python -m experiments.compare --config=configs/pacs/fedavg.py --config=configs/pacs/fedbn.py \\
        --config.data.path=PACS --vary=data.unseen=all --workdir=runs/pacs

Cells that differ in seeds and real numbers of the algorithm alone are trained together, as one program; where that
fails, each by itself. What is finished is not trained again; a cell that fails is told and does not stop the rest. Exit
status: 0 = all cells are done, 1 = some failed, 2 = something to mend, said before the first was trained.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markdown import Markdown

from fedjax_het.errors import InputError

from . import PROGRAM
from .configuration import settings
from .configuration.overrides import split_overrides
from .runs import json_files
from .runs.results import RunResults
from .runs.tables import WRITERS, LabeledRun, Table, narrow, result_tables, to_markdown
from .sweep import grid, run_grid
from .sweep.run_grid import GridResult

_MOST_COLUMNS = 8  # that a terminal has room for


class Command(NamedTuple):
    configs: list[Path]
    common: dict[str, str]
    varied: dict[str, list[str]]
    workdir: Path
    most: int


def parse(argv: Sequence[str]) -> Command:
    """The command line. Raises InputError for what cannot be read."""
    own, common = split_overrides(argv)
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} compare",
        description="Train every config with every combination of what is varied, and tabulate the results.",
        epilog="--config.<key>=<value> sets a key in all of them.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        type=settings.find_config,
        action="append",
        required=True,
        help="a config file or the name of an embedded config; may be repeated",
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="values of a key, algorithm.lam=0.01,0.1; data.unseen=all leaves out every domain in turn",
    )
    parser.add_argument("--workdir", type=Path, required=True, help="the directory of the runs and the tables")
    parser.add_argument(
        "--together",
        type=int,
        default=run_grid.MOST,
        metavar="N",
        help="train at most so many in one program, where they differ in seeds and real numbers of the algorithm alone "
        "(default %(default)s); 1 is each by itself",
    )
    known = parser.parse_args(own)
    if known.together < 1:
        raise InputError(f"--together={known.together}: at least 1, which is each by itself.")
    varied = {}
    for text in known.vary:
        key, _, values = text.partition("=")
        if not key or not all(choices := [value.strip() for value in values.split(",")]):
            raise InputError(f"--vary={text}: write a key and its values, --vary=algorithm.lam=0.01,0.1")
        if key in common:
            raise InputError(f"--vary={text}: --config.{key} is set for all. Leave one of the two out.")
        varied[key] = choices
    return Command(known.config, common, varied, known.workdir, known.together)


def run(command: Command) -> tuple[list[GridResult], list[Table]]:
    """Train what is not done yet, and write the tables of what is."""
    chosen = grid.make_grid(command.configs, command.common, command.varied)
    grid.check_runs(chosen, command.workdir)
    found = run_grid.run_grid(chosen, command.workdir, command.most)
    ended = sorted(found, key=lambda outcome: chosen.index(outcome.cell))
    return ended, write(ended, command.workdir)


def write(ended: Sequence[GridResult], workdir: Path) -> list[Table]:
    """Each table in every form, all in results.md, and grid.json: which cell is where and how it ended."""
    labels = grid.label_runs([outcome.cell for outcome in ended])
    done = [
        LabeledRun(label, RunResults(outcome.directory), outcome.cell.own.get(grid.UNSEEN, ""))
        for label, outcome in zip(labels, ended, strict=True)
        if outcome.is_done
    ]
    tables = result_tables(done)
    for table in tables:
        for ending, form in WRITERS.items():
            json_files.write(workdir / f"{table.name}{ending}", form(table))
    json_files.write(
        workdir / "grid.json", json_files.to_json([run_grid.result_record(each) for each in ended], indent=2) + "\n"
    )
    json_files.write(workdir / "results.md", "\n".join(map(to_markdown, tables)))
    return tables


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    try:
        command = parse(argv)
        ended, tables = run(command)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command resumes", file=sys.stderr)
        return 130
    Console().print(Markdown("\n".join(to_markdown(narrow(table, _MOST_COLUMNS)) for table in tables)))
    print(f"written: {command.workdir / 'results.md'}, and each table as .md, .tex and .csv beside it")
    return int(not all(outcome.is_done for outcome in ended))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
