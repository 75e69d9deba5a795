"""Verdicts on the headline claims of FedLD, FedRD, HarmoFL and FedMGC:

    python -m experiments.claims --topic=fedmgc_fashion_mnist --data=fashion_mnist=fashion_mnist.npz

trains the runs that are missing, method by method, and after each of them writes the values as CSV and the tables of
docs/claims.md. The learning rate is chosen by validation examples, by `experiments.study`. The same command resumes;
`--topic=none` writes the page from the CSV files alone. Exit status: 0 = all is done, 1 = some runs failed, 2 = an
error of input.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedjax_het.cli.configuration.command_line import make_parser, split_overrides, with_exit_status
from fedjax_het.cli.configuration.config_files import find_config
from fedjax_het.cli.runs import json_files
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.runs.setting_text import select_names
from fedjax_het.cli.study.search import Command, Study
from fedjax_het.cli.study.trials import Rung, Trial
from fedjax_het.cli.sweep import grid
from fedjax_het.errors import InputError

from ..papers.command import parse_paths
from ..papers.spec import Settings, fill_paths
from .experiments import TOPICS
from .page import Row, check_page, read_rows, write_page, write_rows
from .spec import Experiment

_RATE = "algorithm.learning_rate"


class Run(NamedTuple):
    """What the command line says about all experiments."""

    common: Settings  # of all runs, which take precedence
    seeds: int
    workdir: Path


def make_study(experiment: Experiment, method: str, column: str, run: Run, folder: Path) -> Study:
    """Make the study of one method in one column: its trials are the learning rates."""
    common = {**experiment.common, **experiment.columns[column], **run.common}
    own = {key: text for key, text in experiment.methods[method].items() if key not in run.common}
    refits = {}
    if experiment.diagnostics:
        last = max(int(common["rounds"]) - 1, 1)
        refits = {"diagnostics": experiment.diagnostics, "diagnose_every": str(last)}
    trials = [Trial(method, ((_RATE, rate),)) for rate in experiment.rates] or [Trial(method, ())]
    return Study(
        Command(
            config=find_config(experiment.config),
            common=common,
            own={method: own},
            rungs=[Rung(int(common["rounds"]), len(trials))],
            seeds=run.seeds,
            select="mean_client",
            scope=experiment.scope,
            trials={method: trials},
            has_oracle=False,
            workdir=folder / (column or "all"),
            max_together=grid.MAX_TOGETHER,
            refit_settings=refits,
        )
    )


def train_method(experiment: Experiment, method: str, run: Run, folder: Path) -> list[Row]:
    """Train one method in all columns, at the learning rate that validation examples choose, and read its values."""
    rows = []
    for column in experiment.columns:
        study = make_study(experiment, method, column, run, folder)
        best = study.search()[0][method] if experiment.rates else list(study.command.trials[method])
        done = study.refit(best[:1])[0]
        for name, (_, read) in experiment.quantities.items():
            if result := done.get(best[0]) if best else None:
                seeds = read(RunResults(result.directory), column)
                rows.append(Row(method, column, name, best[0].text, seeds))
            else:
                rows.append(Row(method, column, name, "failed", []))
    return rows


@with_exit_status("stopped; the same command resumes")
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    own, common = split_overrides(argv)
    parser = make_parser(
        "python -m experiments.claims",
        "Train experiments on headline claims of papers, and write the verdicts.",
    )
    names = {name: experiment for of_topic in TOPICS.values() for name, experiment in of_topic.items()}
    parser.add_argument("--topic", default="all", help=f"{', '.join([*TOPICS, *names])}, comma-separated, all, or none")
    parser.add_argument("--data", action="append", default=[], metavar="NAME=PATH", help="of each file that is read")
    parser.add_argument("--methods", default="all", metavar="A,B", help="train no others (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="of the runs that are compared (default %(default)s)")
    parser.add_argument("--workdir", type=Path, default=Path("runs/claims"), help="of the runs")
    parser.add_argument(
        "--page", type=Path, default=Path("docs/claims.md"), help="the page; values beside it, in claims/"
    )
    flags = parser.parse_args(own)
    if flags.seeds < 2:
        raise InputError(f"--seeds={flags.seeds}: an interval needs at least 2.")
    chosen = [] if flags.topic == "none" else select_names("--topic", flags.topic, [*TOPICS, *names])
    chosen = list(dict.fromkeys(name for each in chosen for name in TOPICS.get(each, {each: None})))
    methods = select_names("--methods", flags.methods, {name for each in names.values() for name in each.methods})
    if not flags.page.is_file():
        raise InputError(f"--page: '{flags.page}' does not exist. Give the Markdown file that has the marks.")
    check_page(flags.page, TOPICS)
    paths = parse_paths({key: text for name in chosen for key, text in names[name].data.items()}, flags.data)
    paths = {name: str(Path(path).resolve()) for name, path in paths.items()}
    values, is_done = flags.page.with_suffix(""), True
    json_files.check_writable(values, "--page")
    values.mkdir(parents=True, exist_ok=True)
    run = Run(common, flags.seeds, flags.workdir)
    for name in chosen:
        experiment = _fill(names[name], paths)
        known = read_rows(values / f"{name}.csv")
        rows = {method: [row for row in known if row.method == method] for method in experiment.methods}
        for method in (each for each in experiment.methods if each in methods):
            rows[method] = train_method(experiment, method, run, flags.workdir / name)
            is_done &= all(row.seeds for row in rows[method])
            write_rows(values / f"{name}.csv", [row for of_method in rows.values() for row in of_method])
            write_page(flags.page, values, TOPICS)
    write_page(flags.page, values, TOPICS)
    return int(not is_done)


def _fill(experiment: Experiment, paths: Settings) -> Experiment:
    return experiment._replace(common={key: fill_paths(text, paths) for key, text in experiment.common.items()})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
