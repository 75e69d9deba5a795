"""Train from a config: python -m experiments.train --config=configs/quickstart.py --config.algorithm.lam=0.01

The same command goes on where a stopped run left off, and prints the table of a complete one. Exit status: 0 = done,
2 = something to mend, said on stderr before anything was compiled or written, 1 = anything else.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
from absl.flags import argparse_flags
from rich.console import Console

from experiments import arguments, build, catalogue, found, report, settings
from experiments.rundir import RunDirectory
from experiments.training import WRITTEN, Training
from fedjax_het.cache import cache_folder
from fedjax_het.errors import InputError, NonFiniteError

jax.config.config_with_absl()  # JAX's own settings are flags too: --jax_platforms=cpu, --jax_debug_nans=true


class Command(NamedTuple):
    config: Path
    workdir: Path
    overrides: dict[str, str]  # {"algorithm.mu": "0.01"}
    is_cached: bool  # whether compiled programs are kept for other runs


def parse(argv: Sequence[str]) -> Command:
    """The command line. `--config.<key>=<value>` sets any key of the config, whether the file sets it or not."""
    own, overrides = arguments.apart(argv)
    parser = argparse_flags.ArgumentParser(
        prog="python -m experiments.train",
        description="Train from a config; the same command resumes a run that was stopped.",
        epilog="--config.<key>=<value> sets any key: --config.rounds=50 --config.algorithm.name=fedprox",
        allow_abbrev=False,
    )
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--config", type=Path, help="a Python file with get_config()")
    chosen.add_argument("--list", action="store_true", help="print every algorithm with its options, and stop")
    parser.add_argument("--workdir", type=Path, help="the run directory; else runs/<the config's place below configs/>")
    parser.add_argument(
        "--no_compilation_cache", action="store_true", help="compile anew, and keep no program for other runs"
    )
    known = parser.parse_args(own)
    if known.list:
        catalogue.show()
        raise SystemExit(0)
    workdir = known.workdir or Path("runs", *_name(known.config))
    return Command(known.config, workdir, overrides, not known.no_compilation_cache)


def _name(config: Path) -> tuple[str, ...]:
    """("pacs", "fedbn") for configs/pacs/fedbn.py, so that data sets do not share a run directory."""
    parts = config.with_suffix("").parts
    return parts[parts.index("configs") + 1 :] if "configs" in parts else parts[-1:]


def run(command: Command) -> None:
    """Refuse what can be refused, then compile, then write."""
    chosen, notes = settings.complete(settings.load(command.config), command.overrides)
    for note in notes:
        print(f"note: {note}")
    directory = RunDirectory(command.workdir)
    directory.check(chosen)
    if directory.read("summary.json") is None:
        earlier = directory.read("choices.json") or {}
        parts = build.parts(chosen, earlier)
        directory.check_partition(parts.federation.fingerprint)
        found.show(parts.dataset)
        print("compiling ...", flush=True)
        simulation = build.simulation(parts, chosen)
        choices = earlier or build.choices(parts, simulation)
        print(report.facts(simulation.facts, parts.federation, chosen, choices, directory.path), flush=True)
        with directory:
            Training(simulation, parts.federation, chosen, choices, directory).run()
    summary = directory.read("summary.json")
    Console().print(report.table(summary["final"], summary["rounds"]))
    print(report.paths(directory.path, WRITTEN))


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    found.tell_progress()
    try:
        command = parse(argv)
        if command.is_cached and not jax.config.jax_compilation_cache_dir:
            jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "programs"))
        run(command)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except NonFiniteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
