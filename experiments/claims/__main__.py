"""Verdicts on the headline claims of FedLD, FedRD, HarmoFL and FedMGC:

    python -m experiments.claims --topic=fedmgc_fashion_mnist --data=fashion_mnist=fashion_mnist.npz

trains the missing runs, method by method. After each method it writes the values as CSV and the tables of
docs/claims.md. The learning rate is selected on validation examples. The same command resumes; `--topic=none` writes
the page from the CSV files without training. Exit status: 0 = success, 1 = some runs failed, 2 = invalid input.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.run import Runner, parse_paths
from experiments.spec import Entry, Experiment
from experiments.tables import to_csv
from experiments.verdicts import check_page, load_entries, write_page
from fedjax_het.cli.configuration.command_line import make_parser, split_overrides, with_exit_status
from fedjax_het.cli.runs import json_files
from fedjax_het.cli.runs.setting_text import select_names
from fedjax_het.errors import InputError

from .experiments import TOPICS


def merge_entries(experiment: Experiment, before: Sequence[Entry], runner: Runner) -> list[Entry]:
    """Replace the results of earlier commands where runs have ended, in the order of the experiment."""
    ended = runner.read_results()
    entries = {entry[:3]: entry for entry in before}
    entries |= {entry[:3]: entry for entry in runner.read_entries() if (entry.row, entry.column) in ended}
    measures, rows = list(experiment.measures), list(experiment.rows)
    return sorted(entries.values(), key=lambda entry: (measures.index(entry.measure), rows.index(entry.row)))


@with_exit_status("stopped; the same command resumes")
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    own, common = split_overrides(argv)
    parser = make_parser(
        "python -m experiments.claims",
        "Train experiments on headline claims of papers, and write the verdicts.",
    )
    known = {name: experiment for experiments in TOPICS.values() for name, experiment in experiments.items()}
    parser.add_argument("--topic", default="all", help=f"{', '.join([*TOPICS, *known])}, comma-separated, all, or none")
    parser.add_argument("--data", action="append", default=[], metavar="NAME=PATH", help="the path of each data file")
    parser.add_argument("--methods", default="all", metavar="A,B", help="the methods to train (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the compared runs (default %(default)s)")
    parser.add_argument("--workdir", type=Path, default=Path("runs/claims"), help="the folder of the runs")
    parser.add_argument(
        "--page", type=Path, default=Path("docs/claims.md"), help="the page; its values are in claims/ next to it"
    )
    flags = parser.parse_args(own)
    if flags.seeds < 2:
        raise InputError(f"--seeds={flags.seeds}: an interval needs at least 2.")
    topics = [] if flags.topic == "none" else select_names("--topic", flags.topic, [*TOPICS, *known])
    names = list(dict.fromkeys(name for topic in topics for name in TOPICS.get(topic, {topic: None})))
    methods = select_names(
        "--methods", flags.methods, {row for experiment in known.values() for row in experiment.rows}
    )
    if not flags.page.is_file():
        raise InputError(f"--page: '{flags.page}' does not exist. Give the Markdown file that has the marks.")
    check_page(flags.page, TOPICS)
    files = {key: text for name in names for key, text in known[name].scales["cpu"].data.items()}
    paths = {name: str(Path(path).resolve()) for name, path in parse_paths(files, flags.data).items()}
    values = flags.page.with_suffix("")
    json_files.check_writable(values, "--page")
    runners: dict[str, Runner] = {}
    for name in names:
        rows = {row: settings for row, settings in known[name].rows.items() if row in methods}
        refit = {**(known[name].refit or {}), "num_seeds": str(flags.seeds)}
        if rows:
            runners[name] = Runner(known[name]._replace(rows=rows, refit=refit), "cpu", common, paths, flags.workdir)
    values.mkdir(parents=True, exist_ok=True)
    for name, runner in runners.items():
        before = load_entries(values / f"{name}.csv")

        def write(name: str = name, runner: Runner = runner, before: Sequence[Entry] = before) -> None:
            entries = merge_entries(known[name], before, runner)
            json_files.write(values / f"{name}.csv", to_csv(entries))
            write_page(flags.page, values, TOPICS)

        runner.train(write)
    write_page(flags.page, values, TOPICS)
    return int(not all(run for runner in runners.values() for run, _ in runner.read_results().values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
