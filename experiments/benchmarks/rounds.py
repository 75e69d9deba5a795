"""Benchmark of a round of FedAvg in several simulators: python -m experiments.benchmarks.rounds --work=w1 --peers=all

Every contender starts from the same weights, takes the same batches and number of gradient steps, runs in a process of
its own, and has the machine to itself while it computes.
Exit status: 0 = done, 1 = fedjax_het crashed, 2 = an input error, found before anything ran.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from absl.flags import argparse_flags
from rich.console import Console

from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.distributed import layouts
from fedjax_het.cli.runs import json_files
from fedjax_het.cli.runs.setting_text import parse_layout, select_names
from fedjax_het.errors import InputError, nearest

from . import report
from .harness import Benchmark, BenchmarkRules
from .peers import CONTENDERS, OURS, PEERS
from .workloads import WORKLOADS, Workload


class Command(NamedTuple):
    works: list[Workload]
    peers: list[str]
    rules: BenchmarkRules
    json: Path | None


def parse_command(argv: Sequence[str]) -> Command:
    """Parse the command line. Raises InputError for invalid arguments."""
    parser = argparse_flags.ArgumentParser(
        prog="python -m experiments.benchmarks.rounds",
        description="Time a round of FedAvg in fedjax_het and in other simulators, on this machine's CPU.",
        epilog="Peers: " + "; ".join(f"{name}: {entry.title}" for name, entry in PEERS.items()),
        allow_abbrev=False,
    )
    parser.add_argument("--work", required=True, help=f"{', '.join(WORKLOADS)} or all")
    parser.add_argument("--peers", default="all", help="comma-separated names, all, or none")
    parser.add_argument("--rounds", type=int, default=report.DEFAULT_RULES.rounds, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=report.DEFAULT_RULES.warmup, help="rounds before the timed ones")
    parser.add_argument("--json", type=Path, help="write the records to this file")
    parser.add_argument("--layout", default="", help="the layout of fedjax_het (default sharded(<cores>, 1))")
    parser.add_argument(
        "--python", action="append", default=[], metavar="PEER=PATH", help="run a peer with another interpreter"
    )
    parser.add_argument("--clients", type=int, default=0, help="fewer clients, for a trial")
    parser.add_argument("--examples", type=int, default=0, help="fewer examples per client, for a trial")
    flags = parser.parse_args(list(argv))
    for name, lowest in {"rounds": 1, "warmup": 0, "clients": 0, "examples": 0}.items():
        if getattr(flags, name) < lowest:
            raise InputError(f"--{name}: must be {lowest} or more, not {getattr(flags, name)}.")
    if flags.layout:
        parse_layout(flags.layout)
    rules = BenchmarkRules(
        rounds=flags.rounds,
        warmup=flags.warmup,
        cores=layouts.count_cores(),
        layout=flags.layout,
        pythons=dict(_parse_interpreter(text) for text in flags.python),
    )
    names = select_names("--work", flags.work, WORKLOADS)
    works = [WORKLOADS[name].resized(flags.clients, flags.examples) for name in names]
    peers = [] if flags.peers == "none" else select_names("--peers", flags.peers, PEERS)
    if flags.json is not None:
        check_json_path(flags.json)
    return Command(works, peers, rules, flags.json)


def _parse_interpreter(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if name not in CONTENDERS:
        raise InputError(f"--python: '{name}' is unknown. {nearest(name, CONTENDERS)}")
    if not os.access(path, os.X_OK):
        raise InputError(f"--python: '{path}' is not an executable file. Give {name}=<path of a Python interpreter>.")
    return name, os.path.abspath(path)


def check_json_path(path: Path, flag: str = "--json") -> None:
    """Raise InputError if a file cannot be written."""
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise InputError(f"{flag}: cannot write '{path}'. Give a file in an existing directory.")


def run_command(command: Command) -> int:
    """Run the workloads and return the exit status. The file always holds every workload that is done."""
    console, records, status = Console(), [], 0
    for work in command.works:
        measurements = Benchmark(
            work, command.peers, command.rules, report=lambda text: print(text, end="", flush=True)
        ).run()
        console.print(report.make_table(work, measurements, command.rules))
        for remark in report.make_remarks(measurements, command.rules):
            print(remark, flush=True)
        records += report.to_records(work, measurements)
        if command.json:
            json_files.write(command.json, json_files.to_json(records, indent=1) + "\n")
        status = status or int(not measurements[OURS].is_timed)
    return status


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    return run_command(parse_command(argv))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no contender is left behind
    sys.exit(main(sys.argv[1:]))
