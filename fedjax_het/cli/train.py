"""Training from a config: fedjax-het train --config=quickstart --config.algorithm.lam=0.01

The same command resumes a stopped run and prints the results of a complete one. With --coordinator, --num_processes and
--process_id, or --distributed, several processes train together. Exit status: 0 = done, 2 = an input error, printed on
stderr before anything is compiled or written, or a full disk, 1 = any other error.
"""

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from absl.flags import argparse_flags
from rich.console import Console

from fedjax_het.cli import trackers
from fedjax_het.cli.configuration import build, config_files, settings
from fedjax_het.cli.configuration.command_line import add_config_flag, report_full_disk, split_overrides, with_hints
from fedjax_het.cli.distributed import initialization
from fedjax_het.cli.distributed.collectives import RESUME_HINT, SINGLE, CollectiveInputError, Processes
from fedjax_het.cli.distributed.initialization import DistributedConfig
from fedjax_het.cli.runs import data_usage, dataset_table, diagnostics_log, json_files
from fedjax_het.cli.runs.run_directory import RunDirectory, describe_differences
from fedjax_het.cli.runs.run_files import SELECTED
from fedjax_het.cli.training import terminal
from fedjax_het.cli.training.loop import TrainingLoop
from fedjax_het.cli.training.recorder import PHASES, WRITTEN, RunRecorder, draw_pictures
from fedjax_het.errors import InputError, NonFiniteError

_NOT_BITWISE = (
    "note: the run began on other devices, in another layout or together with other runs: its results are equal within "
    "rounding, not bit for bit."
)
jax.config.config_with_absl()  # JAX's own settings are flags too: --jax_platforms=cpu, --jax_debug_nans=true


class Run(NamedTuple):
    """The settings of a run and its directory."""

    settings: settings.Settings
    directory: RunDirectory


class Command(NamedTuple):
    config: config_files.Config
    workdir: Path
    overrides: dict[str, str]  # {"algorithm.mu": "0.01"}
    distributed: DistributedConfig = DistributedConfig()


def parse(argv: Sequence[str]) -> Command:
    """Parse the command line. `--config.<key>=<value>` sets any key of the config, whether the file sets it or not.

    Raises:
        InputError: The flags of several processes do not go together.
    """
    own, overrides = split_overrides(argv)
    parser = argparse_flags.ArgumentParser(
        prog="fedjax-het train",
        description="Train from a config; the same command resumes a run that was stopped.",
        epilog="--config.<key>=<value> sets any key: --config.rounds=50 --config.algorithm.name=fedprox",
        allow_abbrev=False,
    )
    add_config_flag(with_hints(parser))
    parser.add_argument(
        "--workdir", type=Path, help="the run directory (default: runs/pacs-fedrd for --config=pacs:fedrd)"
    )
    initialization.add_flags(parser)
    flags = parser.parse_args(own)
    workdir = flags.workdir or Path("runs", flags.config.name)
    return Command(flags.config, workdir, overrides, initialization.read_flags(flags))


def run(command: Command, processes: Processes = SINGLE) -> None:
    """Train the run of a command, or resume it, and print its results.

    Raises:
        InputError: The config, the data or the run directory cannot be used; nothing has been compiled or written.
        NonFiniteError: An update is not finite, where config.on_nonfinite is "raise".
    """
    processes.check_count()
    with processes.barrier("settings"):
        run_settings, notes = settings.complete_settings(config_files.load_config(command.config), command.overrides)
        directory = RunDirectory(command.workdir)
        state = directory.check(run_settings, is_thorough=processes.is_first)
    _check_equal(processes, "config", run_settings)
    is_complete, resolved, more_notes = processes.broadcast("before", [state.is_complete, state.resolved, state.notes])
    for note in (*notes, *more_notes):
        print(f"note: {note}")
    if not is_complete:
        train_together([Run(run_settings, directory)], resolved, processes)
    if processes.is_first:
        draw_pictures(directory)
        _print_results(Run(run_settings, directory), has_trained=not is_complete)


def train_together(runs: Sequence[Run], resolved: Mapping[str, Any], processes: Processes = SINGLE) -> None:
    """Train one run, or several that differ only in seeds and real numbers of the algorithm, as one program.

    Args:
        runs: the runs to train.
        resolved: the record of resolved.json of the first run; empty if it has not begun.
        processes: the processes that train together.

    Raises:
        InputError: Something cannot be used, or the runs differ in more; nothing has been compiled or written.
        NonFiniteError: An update is not finite, where config.on_nonfinite is "raise".
    """
    first, directory = runs[0]
    # config -> data, model, algorithm
    with processes.barrier("parts"):
        if processes.is_first:
            trackers.check(trackers.names(first["live"]))
        parts = build.build_parts(first, resolved, processes)
        runs = [run._replace(settings=build.resolve_auto(run.settings, parts.federation, resolved)) for run in runs]
        for run in runs:
            run.directory.check_settings(run.settings)
            run.directory.check_partition(parts.federation.fingerprint)
    _check_equal(processes, "partition", parts.federation.fingerprint)
    all_settings = [run.settings for run in runs]
    names = [run.directory.path.name for run in runs] if len(runs) > 1 else []
    if resolved and (not parts.resolved or resolved.get("beside", []) != names):
        print(_NOT_BITWISE)
    dataset_table.print_dataset(parts.dataset)
    # -> simulation
    with terminal.show_compilation(), processes.barrier("simulation"):
        simulation = build.build_simulation(parts, all_settings, directory.path)
        stop = settings.with_stop(all_settings[0], lambda stop: stop.complete(simulation))
    resolved = build.describe_resolved(parts, simulation, all_settings[0], names)
    print(terminal.describe_costs(simulation, all_settings[0], resolved, directory.path), flush=True)
    if names:
        print(f"trained in one program: {', '.join(names)}", flush=True)
    # -> loop
    with contextlib.ExitStack() as stack:
        stack.enter_context(report_full_disk(directory.path))
        for run in runs:
            stack.enter_context(run.directory.lock(processes))
        recorders = [
            RunRecorder(
                run.directory,
                run.settings,
                resolved,
                parts.federation,
                simulation.cost,
                stop=stop,
                beside=(i, len(runs)),
                processes=processes,
            )
            for i, run in enumerate(runs)
        ]
        TrainingLoop(simulation, recorders, processes).run()


def _print_results(run: Run, has_trained: bool) -> None:
    """Print the figures and the files of a complete run, and its data unless its training has printed them."""
    directory = run.directory
    summary, partition = directory.read("summary.json"), directory.read("partition.json")
    Console(markup=False).print(terminal.tabulate_results(summary))
    if partition and not has_trained:
        print(terminal.describe_data_usage(partition, data_usage.groups_of(summary["final"])))
    optional = (
        *diagnostics_log.diagnostics_files(run.settings["diagnostics"]),
        *trackers.folders(run.settings["live"], directory.path),
        SELECTED,
        PHASES,
    )
    paths = [directory / name for name in (*WRITTEN, *optional)]
    print("\n".join(["written:", *(f"  {path}" for path in paths if path.exists())]))


def _check_equal(processes: Processes, name: str, value: Any) -> None:
    """Raise InputError in all processes if one of them has another value than the first."""
    first, *others = processes.all_gather(name, json.loads(json_files.to_json(value)))
    for index, other in enumerate(others, 1):
        if lines := list(describe_differences(first, other, name)):
            raise CollectiveInputError(
                f"process {index} has another {name} than process 0. Give all processes the same command and the same "
                f"data (key: process 0 / process {index}):\n" + "\n".join(f"  {line}" for line in lines)
            )


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    processes = SINGLE
    dataset_table.print_progress()
    try:
        command = parse(argv)
        processes = initialization.initialize(command.distributed)
        with processes.only_first_prints(), report_full_disk(command.workdir):
            run(command, processes)
    except InputError as error:
        return processes.end(2, error)
    except NonFiniteError as error:
        return processes.end(1, error)
    except KeyboardInterrupt:
        return processes.end(130, f"stopped; {RESUME_HINT}")
    except Exception as error:
        if processes.count == 1:
            raise
        return processes.crash(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
