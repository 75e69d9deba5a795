"""Time a round of FedAvg, ours and other simulators': python -m experiments.benchmarks.rounds --work=w1 --peers=all

Everybody has the same initial weights, batches and number of gradient steps, its own process, and the machine to itself
while it computes. Exit status: 0 = done, 2 = something to mend, said before anything ran, 1 = ours crashed.
"""

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from absl.flags import argparse_flags
from rich.console import Console

from fedjax_het.errors import InputError, nearest

from ..distributed import cpu_devices
from ..runs import json_files
from ..runs.setting_text import parse_layout
from . import report
from .harness import Benchmark, BenchmarkRules
from .peers import CONTENDERS, OURS, PEERS
from .workloads import WORKLOADS, Workload


class Command(NamedTuple):
    works: list[Workload]
    peers: list[str]
    rules: BenchmarkRules
    json: Path | None


def parse(argv: Sequence[str]) -> Command:
    """The command line. Raises InputError for what cannot work."""
    parser = argparse_flags.ArgumentParser(
        prog="python -m experiments.benchmarks.rounds",
        description="Time a round of FedAvg, ours and other simulators', on this machine's CPU.",
        epilog="Peers: " + "; ".join(f"{name}: {entry.title}" for name, entry in PEERS.items()),
        allow_abbrev=False,
    )
    parser.add_argument("--work", required=True, help=f"{', '.join(WORKLOADS)} or all")
    parser.add_argument("--peers", default="all", help="names with commas between, all, or none")
    parser.add_argument("--rounds", type=int, default=report.FEWEST.rounds, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=report.FEWEST.warmup, help="rounds before them")
    parser.add_argument("--json", type=Path, help="write the records to this file")
    parser.add_argument("--layout", default="", help="of ours; else sharded(<cores>, 1)")
    parser.add_argument(
        "--python", action="append", default=[], metavar="PEER=PATH", help="run a peer with another interpreter"
    )
    parser.add_argument("--clients", type=int, default=0, help="fewer clients, for trying out")
    parser.add_argument("--examples", type=int, default=0, help="fewer examples a client, for trying out")
    known = parser.parse_args(list(argv))
    for name, least in {"rounds": 1, "warmup": 0, "clients": 0, "examples": 0}.items():
        if getattr(known, name) < least:
            raise InputError(f"--{name}: must be {least} or more, not {getattr(known, name)}.")
    if known.layout:
        parse_layout(known.layout)
    rules = BenchmarkRules(
        rounds=known.rounds,
        warmup=known.warmup,
        cores=cpu_devices.count_cores(),
        layout=known.layout,
        pythons=dict(_interpreter(text) for text in known.python),
    )
    works = [
        WORKLOADS[name].resized(known.clients, known.examples) for name in _chosen("--work", known.work, WORKLOADS)
    ]
    return Command(works, _chosen("--peers", known.peers, PEERS), rules, _checked(known.json))


def _chosen(flag: str, text: str, known: Iterable[str]) -> list[str]:
    if text == "all":
        return list(known)
    if text == "none" and flag == "--peers":
        return []
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names or [text]:
        if name not in known:
            raise InputError(f"{flag}: there is no '{name}'. {nearest(name, [*known, 'all'])}")
    return list(dict.fromkeys(names))


def _interpreter(text: str) -> tuple[str, str]:
    name, _, path = text.partition("=")
    if name not in CONTENDERS:
        raise InputError(f"--python: there is no '{name}'. {nearest(name, CONTENDERS)}")
    if not os.access(path, os.X_OK):
        raise InputError(f"--python: '{path}' is no program. Give {name}=<path of a Python interpreter>.")
    return name, os.path.abspath(path)


def _checked(path: Path | None) -> Path | None:
    if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise InputError(f"--json: cannot write '{path}'. Give a file in a directory that is there.")
    return path


def run(command: Command) -> int:
    """The exit status. The file holds every work that is done, at any moment."""
    console, records, status = Console(), [], 0
    for work in command.works:
        standings = Benchmark(
            work, command.peers, command.rules, say=lambda text: print(text, end="", flush=True)
        ).run()
        console.print(report.make_table(work, standings, command.rules))
        for remark in report.make_remarks(standings, command.rules):
            print(remark, flush=True)
        records += report.to_records(work, standings)
        if command.json:
            json_files.write(command.json, json_files.to_json(records, indent=1) + "\n")
        status = status or int(not standings[OURS].is_timed)
    return status


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    try:
        return run(parse(argv))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no contender is left behind
    sys.exit(main(sys.argv[1:]))
