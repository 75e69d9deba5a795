"""Train from a config: python -m experiments.train --config=configs/quickstart.py --config.algorithm.lam=0.01

The same command goes on where a stopped run left off, and prints the table of a complete one. With --coordinator,
--num_processes and --process_id, or --distributed, several processes train together. Exit status: 0 = done,
2 = something to mend, said on stderr before anything was compiled or written, 1 = anything else.
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

from fedjax_het._internal.cache_folder import cache_folder
from fedjax_het.errors import InputError, NonFiniteError

from . import PROGRAM, trackers
from .configuration import build, settings
from .configuration.overrides import split_overrides
from .distributed import initialization
from .distributed.collectives import RESUME_HINT, SINGLE, CollectiveInputError, Processes
from .distributed.initialization import DistributedConfig
from .runs import data_usage, dataset_table, diagnostics_log, json_files
from .runs.run_directory import RunDirectory, describe_differences
from .runs.run_files import SELECTED
from .training import terminal
from .training.loop import Training
from .training.recorder import WRITTEN, RunRecorder, draw_pictures

ELSEWHERE = (
    "note: the run began on other devices, in another layout or beside other runs: equal within rounding, not to the "
    "bit."
)
jax.config.config_with_absl()  # JAX's own settings are flags too: --jax_platforms=cpu, --jax_debug_nans=true


class Run(NamedTuple):
    settings: settings.Settings
    directory: RunDirectory


class Command(NamedTuple):
    config: Path
    workdir: Path
    overrides: dict[str, str]  # {"algorithm.mu": "0.01"}
    is_cached: bool  # whether compiled programs are kept for other runs
    distributed: DistributedConfig = DistributedConfig()


def parse(argv: Sequence[str]) -> Command:
    """The command line. `--config.<key>=<value>` sets any key of the config, whether the file sets it or not."""
    own, overrides = split_overrides(argv)
    parser = argparse_flags.ArgumentParser(
        prog=f"{PROGRAM} train",
        description="Train from a config; the same command resumes a run that was stopped.",
        epilog="--config.<key>=<value> sets any key: --config.rounds=50 --config.algorithm.name=fedprox",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        type=settings.find_config,
        required=True,
        help=f"a Python file with get_config(), or an embedded config (`{PROGRAM} list` names them)",
    )
    parser.add_argument("--workdir", type=Path, help="the run directory; else runs/<the config's place below configs/>")
    parser.add_argument(
        "--no_compilation_cache", action="store_true", help="compile anew, and keep no program for other runs"
    )
    initialization.add_flags(parser)
    known = parser.parse_args(own)
    workdir = known.workdir or Path("runs", *_name(known.config))
    return Command(known.config, workdir, overrides, not known.no_compilation_cache, initialization.read_flags(known))


def _name(config: Path) -> tuple[str, ...]:
    """("pacs", "fedbn") for configs/pacs/fedbn.py, so that data sets do not share a run directory."""
    parts = config.with_suffix("").parts
    return parts[len(parts) - parts[::-1].index("configs") :] if "configs" in parts else parts[-1:]


def run(command: Command, processes: Processes = SINGLE) -> None:
    """Refuse what can be refused, then compile, then write."""
    processes.check_count()
    with processes.barrier("settings"):
        chosen, notes = settings.complete_settings(settings.load_settings(command.config), command.overrides)
        directory = RunDirectory(command.workdir)
        before = directory.check(chosen, is_thorough=processes.is_first)
    _check_same(processes, "config", chosen)
    is_complete, earlier, found_there = processes.broadcast(
        "before", [before.is_complete, before.resolved, before.notes]
    )
    for note in (*notes, *found_there):
        print(f"note: {note}")
    if not is_complete:
        as_one_program([Run(chosen, directory)], earlier, processes)
    if processes.is_first:
        draw_pictures(directory)
        summary, partition = directory.read("summary.json"), directory.read("partition.json")
        Console(markup=False).print(terminal.print_results(summary))
        if partition:
            print(terminal.print_data_usage(partition, data_usage.groups_of(summary["final"])))
        asked = (
            *diagnostics_log.diagnostics_files(chosen["diagnostics"]),
            *trackers.folders(chosen["live"], directory.path),
        )
        names = [name for name in (*WRITTEN, *asked, SELECTED) if (directory / name).exists()]
        print(terminal.describe_files(directory.path, names))


def as_one_program(runs: Sequence[Run], earlier: Mapping[str, Any], processes: Processes = SINGLE) -> None:
    """Refuse, compile and train a run, or several that differ in seeds and numbers alone, as one program.

    earlier: the first one's choices, where it has begun. Raises InputError for runs that differ in more.
    """
    first, directory = runs[0]
    with processes.barrier("parts"):
        if processes.is_first:
            trackers.check(trackers.names(first["live"]))
        parts = build.build_parts(first, earlier, processes)
        runs = [each._replace(settings=build.resolve_auto(each.settings, parts.federation)) for each in runs]
        for each in runs:
            each.directory.check_settings(each.settings)
            each.directory.check_partition(parts.federation.fingerprint)
    first, others = runs[0].settings, [each.settings for each in runs[1:]]
    beside = [each.directory.path.name for each in runs] if others else []
    _check_same(processes, "partition", parts.federation.fingerprint)
    if earlier and (not parts.kept or earlier.get("beside", []) != beside):
        print(ELSEWHERE)
    dataset_table.print_dataset(parts.dataset)
    print("compiling ...", flush=True)
    with processes.barrier("simulation"):
        simulation = build.build_simulation(parts, first, directory.path, others)
    choices = build.describe_choices(parts, simulation, beside)
    print(terminal.print_cost(simulation, first, choices, directory.path), flush=True)
    if beside:
        print(f"one program: {', '.join(beside)}", flush=True)
    with contextlib.ExitStack() as stack:
        for each in runs:
            stack.enter_context(each.directory.lock(processes))
        records = [
            RunRecorder(
                each.directory,
                each.settings,
                choices,
                parts.federation,
                simulation.facts,
                beside=(i, len(runs)),
                processes=processes,
            )
            for i, each in enumerate(runs)
        ]
        Training(simulation, records, processes).run()


def keep_programs() -> None:
    """Compiled programs stay for other runs, where JAX was not told of another place for them."""
    if not jax.config.jax_compilation_cache_dir:  # pyrefly: ignore[missing-attribute]: JAX defines it at import
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "programs"))


def _check_same(processes: Processes, name: str, value: Any) -> None:
    """Raises InputError in all processes where one has another value than the first."""
    first, *others = processes.all_gather(name, json.loads(json_files.to_json(value)))
    for index, other in enumerate(others, 1):
        if lines := list(describe_differences(first, other, name)):
            raise CollectiveInputError(
                f"process {index} has another {name} than process 0. Give all the same command and the same data "
                "(key: process 0 / it):\n" + "\n".join(f"  {line}" for line in lines)
            )


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    processes = SINGLE
    dataset_table.print_progress()
    try:
        command = parse(argv)
        processes = initialization.initialize(command.distributed)
        if command.is_cached:
            keep_programs()
        with processes.only_first_prints():
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
