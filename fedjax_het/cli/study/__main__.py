"""Comparison of methods with the same number of trials each, selected on validation examples:

    fedjax-het study --config=fashion_mnist --config.data.valid_fraction=0.1 \\
        --methods=fedavg,fedld,scaffold --trials=16 --seeds=5 --select=mean_client --workdir=runs/study

Every method gets the same budget: trials with values drawn from the space that its recipe declares (the first has its
defaults), the same rounds and local steps. The trial that the rule prefers on validation examples is trained again with
seeds that no trial has seen, and compared on test examples with the first method, seed by seed. Trials and seeds that
differ in numbers alone are trained in one program. The same command resumes. Exit status: 0 = all is done, 1 = some
runs failed, 2 = an input error, printed before the first run is trained.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markdown import Markdown

from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.cli import compare
from fedjax_het.cli.configuration import build
from fedjax_het.cli.configuration.command_line import add_config_flag, make_parser, split_overrides, with_exit_status
from fedjax_het.cli.runs import json_files
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.runs.tables import to_latex, to_markdown
from fedjax_het.cli.study import comparison, search, selection, trials
from fedjax_het.cli.study.search import Command
from fedjax_het.cli.study.selection import SCORES, SELECTORS
from fedjax_het.cli.sweep import training
from fedjax_het.cli.sweep.grid import GridRun
from fedjax_het.errors import InputError, nearest

_EXAMPLES = 100  # of the client whose local steps are compared


def parse(argv: Sequence[str]) -> Command:
    """Parse the command line.

    Raises:
        InputError: A value cannot be read, or the methods would not have the same budget.
    """
    given, common = split_overrides(argv)
    parser = make_parser(
        "fedjax-het study",
        "Compare methods with the same number of trials for each, selected on validation examples.",
        "; what it sets is not searched",
    )
    add_config_flag(parser)
    parser.add_argument("--methods", required=True, metavar="A,B", help="algorithms; the first is the reference")
    parser.add_argument("--trials", type=int, default=16, help="of each method (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="of the selected trial (default %(default)s)")
    parser.add_argument("--select", choices=SELECTORS, default="mean_client", help="the rule (default %(default)s)")
    parser.add_argument("--score", choices=SCORES, default="server", help="what is compared (default %(default)s)")
    parser.add_argument("--halving", type=int, default=0, metavar="N", help="keep one of N trials from rung to rung")
    parser.add_argument("--oracle", action="store_true", help="add the trial that is best on test examples: a bound")
    parser.add_argument("--seed", type=int, default=0, help="of the draws of values (default %(default)s)")
    parser.add_argument(
        "--for",
        dest="own",
        action="append",
        default=[],
        metavar="METHOD:KEY=VALUE",
        help="a setting of one method, fedrep:algorithm.head_epochs=1; may be repeated",
    )
    parser.add_argument("--workdir", type=Path, required=True, help="the directory of the runs and the tables")
    training.add_parallelism_flags(parser)
    flags = parser.parse_args(given)
    for name, lowest in {"trials": 1, "seeds": 1, "seed": 0}.items():
        if getattr(flags, name) < lowest:
            raise InputError(f"--{name}={getattr(flags, name)}: must be at least {lowest}.")
    if flags.halving < 0 or flags.halving == 1:
        raise InputError(f"--halving={flags.halving}: at least 2, which keeps every second trial, or 0 for no halving.")
    own = _parse_methods(flags.methods, flags.own)
    plain = {name: GridRun(flags.config, common, {"algorithm.name": name, **values}) for name, values in own.items()}
    settings = {name: run.settings() for name, run in plain.items()}
    if not settings[next(iter(own))]["data"]["valid_fraction"]:
        raise InputError("--select: there are no validation examples. Hold some out: --config.data.valid_fraction=0.1")
    steps = {name: _count_local_steps(method_settings) for name, method_settings in settings.items()}
    reference = next(iter(own))
    for name, count in steps.items():
        if count != steps[reference]:
            raise InputError(
                f"--methods: with {_EXAMPLES} examples, a client of {name} takes {count} local steps per round and one "
                f"of {reference} {steps[reference]}. Make them equal, e.g. with --for={name}:algorithm.epochs=1."
            )
    rungs = trials.plan_rungs(settings[reference]["rounds"], flags.trials, flags.halving)
    drawn = {
        name: trials.draw_trials(name, flags.trials, flags.seed, {**common, **options}, settings[name]["algorithm"])
        for name, options in own.items()
    }
    rest = drawn, flags.oracle, flags.workdir, training.read_parallelism(flags)
    return Command(flags.config, common, own, rungs, flags.seeds, flags.select, flags.score, *rest)


def _parse_methods(names: str, own: Sequence[str]) -> dict[str, dict[str, str]]:
    methods: dict[str, dict[str, str]] = {}
    for name in map(str.strip, names.split(",")):
        if name in methods:
            raise InputError(f"--methods: '{name}' is named twice. Name each method once.")
        methods[name] = {}
        if name not in ALGORITHMS:
            raise InputError(f"--methods: there is no algorithm '{name}'. {nearest(name, ALGORITHMS)}")
    for text in own:
        name, _, setting = text.partition(":")
        key, is_set, value = setting.partition("=")
        if name not in methods or not is_set:
            raise InputError(f"--for={text}: write METHOD:KEY=VALUE with one of {', '.join(methods)}.")
        methods[name][key] = value
    return methods


def _count_local_steps(settings: Mapping) -> int:
    return int(build.build_algorithm(settings).local_update.num_steps(np.array([_EXAMPLES]))[0])


def run(command: Command) -> bool:
    """Train what is missing, and write the tables; return whether all runs are done.

    Raises:
        InputError: Settings or a directory cannot be used.
    """
    start, study = time.perf_counter(), search.Study(command)
    by_method, last = study.search()
    chosen = [(method, tried, False) for method, tried in by_method.items()]
    if command.has_oracle:
        bounds = study.sort(study.rate(last, selection.ORACLE))
        chosen += [(method, tried, True) for method, tried in bounds.items()]
    done, seeds = study.refit([tried[0] for _, tried, _ in chosen if tried])
    compare.write_tables(list(done.values()), command.workdir / search.REFITS)
    rows = []
    for method, tried, is_bound in chosen:
        values = tried[0].text if tried else "no trial has a finite rating"
        result = done.get(tried[0]) if tried else None
        scores = selection.read_score(RunResults(result.directory), command.scope) if result else []
        rows.append(comparison.Row(method, values, scores, is_bound))
    warnings = [f"{method}: {fault}" for method, tried in by_method.items() for fault in study.find_faults(tried, last)]
    _write(study, rows, seeds, warnings, time.perf_counter() - start)
    return study.is_whole and all(row.scores for row in rows)


def describe_budget(command: Command) -> str:
    """Describe what each method is given."""
    steps = " + ".join(f"{rung.trials} trials x {rung.rounds} rounds" for rung in command.rungs)
    compared = f"{command.seeds} seeds x {command.rungs[-1].rounds} rounds"
    return (
        f"Each of {len(command.own)} methods: {steps} = {trials.count_rounds(command.rungs):,} rounds to select by "
        f"{command.select} on validation examples, {compared} to compare on test examples."
    )


def _write(
    study: search.Study, rows: Sequence[comparison.Row], seeds: Sequence[int], warnings: Sequence[str], seconds: float
) -> None:
    """Write study.md, .tex, .csv and .json, and trials.csv, and print the table."""
    command = study.command
    if not rows[0].scores:
        raise InputError(f"{command.workdir}: the reference has no finished run; see its train.log.")
    note = (
        f"{describe_budget(command)} Per cent; mean over seeds {seeds[0]} to {seeds[-1]} of initial weights, "
        "clients and batches, on one partition, ± half of the 95 % interval (Student's t). p: paired t-test over "
        f"seeds against {rows[0].method}, corrected by Holm's method. Spaces: "
        + "; ".join(f"{method}: {trials.describe_space(method)}" for method in command.own)
        + "."
    )
    title = f"{command.config.name}: {selection.DESCRIPTIONS[command.scope]}"
    whole_note = " ".join([note, *(f"Warning: {warning}" for warning in warnings)])
    table = comparison.make_table(title, rows, whole_note)
    record = {
        "methods": comparison.to_record(rows),
        "seeds": list(seeds),
        "rungs": [rung._asdict() for rung in command.rungs],
        "select": command.select,
        "score": command.scope,
        "warnings": list(warnings),
        "seconds_of_the_last_start": seconds,
    }
    files = {
        "study.md": to_markdown(table),
        "study.tex": to_latex(table),
        "study.csv": comparison.to_csv(rows, seeds),
        "study.json": json_files.to_json(record, indent=2) + "\n",
        "trials.csv": json_files.to_csv(
            ("method", "values", "rounds", command.select),
            [(trial.method, trial.text, rounds, rating) for trial, rounds, rating in study.ratings],
        ),
    }
    for name, text in files.items():
        json_files.write(command.workdir / name, text)
    table = comparison.without_values(comparison.make_table(title, rows, note))
    Console().print(Markdown(to_markdown(table)))
    for warning in warnings:
        print(f"warning: {warning}")
    print(
        f"written: {', '.join(files)} in {command.workdir}; `fedjax-het report {command.workdir / 'refits'}` draws them"
    )


@with_exit_status("stopped; the same command resumes it")
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    command = parse(argv)
    print(describe_budget(command), flush=True)
    with command.workers:
        return int(not run(command))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
