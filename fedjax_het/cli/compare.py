"""Training of a grid of settings, and tables that compare the results:

    fedjax-het compare --config=pacs --vary=algorithm.name=fedavg,fedbn \\
        --config.data.path=PACS --vary=data.unseen=all --workdir=runs/pacs

Runs that differ only in seeds and real numbers of the algorithm are trained in one program; if it fails, each is
trained by itself. Complete runs are not trained again. A run that fails is reported and does not stop the others. Exit
status: 0 = all runs are complete, 1 = some failed, 2 = an input error, printed before the first run is trained.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.markdown import Markdown

from fedjax_het.cli.configuration.command_line import add_config_flag, make_parser, split_overrides, with_exit_status
from fedjax_het.cli.configuration.config_files import Config
from fedjax_het.cli.runs import json_files
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.runs.tables import WRITERS, LabeledRun, Table, narrow, result_tables, to_markdown
from fedjax_het.cli.sweep import grid, training
from fedjax_het.cli.sweep.training import GridResult
from fedjax_het.cli.sweep.worker import Workers
from fedjax_het.errors import InputError


class Command(NamedTuple):
    configs: list[Config]
    common: dict[str, str]
    varied: dict[str, list[str]]
    workdir: Path
    workers: Workers


def parse(argv: Sequence[str]) -> Command:
    """Parse the command line.

    Raises:
        InputError: A value cannot be read.
    """
    own, common = split_overrides(argv)
    parser = make_parser(
        "fedjax-het compare",
        "Train every config (--config may be repeated) with every combination of the varied values, and "
        "tabulate the results.",
    )
    add_config_flag(parser, action="append")
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=A,B",
        help="values of a key, algorithm.lam=0.01,0.1; data.unseen=all leaves out every domain in turn",
    )
    parser.add_argument("--workdir", type=Path, required=True, help="the directory of the runs and the tables")
    training.add_parallelism_flags(parser)
    flags = parser.parse_args(own)
    varied = {}
    for text in flags.vary:
        key, _, values = text.partition("=")
        if not key or not all(texts := [value.strip() for value in values.split(",")]):
            raise InputError(f"--vary={text}: write a key and its values, --vary=algorithm.lam=0.01,0.1")
        if key in varied:
            raise InputError(f"--vary={text}: {key} is varied twice. Write all its values in one --vary.")
        if key in common:
            raise InputError(f"--vary={text}: --config.{key} sets it for all runs. Leave one of the two out.")
        varied[key] = texts
    return Command(flags.config, common, varied, flags.workdir, training.read_parallelism(flags))


def run(command: Command) -> tuple[list[GridResult], list[Table]]:
    """Train the runs that are not complete, and write the tables of those that are.

    Returns:
        The results in the order of the grid, and the tables.

    Raises:
        InputError: Settings or a directory cannot be used; nothing has been trained.
    """
    runs = grid.make_grid(command.configs, command.common, command.varied)
    grid.check_runs(runs, command.workdir)
    results = training.run_grid(runs, command.workdir, command.workers)
    results = sorted(results, key=lambda result: runs.index(result.run))
    return results, write_tables(results, command.workdir)


def write_tables(results: Sequence[GridResult], workdir: Path) -> list[Table]:
    """Write each table in every format, all tables in results.md, and grid.json with the runs and how they ended."""
    labels = grid.label_runs([result.run for result in results])
    tables = result_tables(
        [
            LabeledRun(label, RunResults(result.directory), result.run.own.get(grid.UNSEEN, ""))
            for label, result in zip(labels, results, strict=True)
            if result.is_done
        ]
    )
    for table in tables:
        for ending, to_text in WRITERS.items():
            json_files.write(workdir / f"{table.name}{ending}", to_text(table))
    records = [result.to_record() for result in results]
    json_files.write(workdir / "grid.json", json_files.to_json(records, indent=2) + "\n")
    json_files.write(workdir / "results.md", "\n".join(map(to_markdown, tables)))
    return tables


@with_exit_status("stopped; the same command resumes it")
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    command = parse(argv)
    with command.workers:
        results, tables = run(command)
    Console().print(Markdown("\n".join(to_markdown(narrow(table)) for table in tables)))
    print(f"written: {command.workdir / 'results.md'}, and in the same directory each table as .md, .tex and .csv")
    return int(not all(result.is_done for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
