"""Time a round of FedAvg, ours and other simulators': python -m experiments.benchmark --work=w1 --peers=all

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

from experiments import cores, files, scores
from experiments.contest import Contest, Rules
from experiments.peers import CONTENDERS, OURS, PEERS
from experiments.words import parse_layout
from experiments.works import WORKS, Work
from fedjax_het.errors import InputError, nearest


class Command(NamedTuple):
    works: list[Work]
    peers: list[str]
    rules: Rules
    json: Path | None


def parse(argv: Sequence[str]) -> Command:
    """The command line. Raises InputError for what cannot work."""
    parser = argparse_flags.ArgumentParser(
        prog="python -m experiments.benchmark",
        description="Time a round of FedAvg, ours and other simulators', on this machine's CPU.",
        epilog="Peers: " + "; ".join(f"{name}: {entry.title}" for name, entry in PEERS.items()),
        allow_abbrev=False,
    )
    parser.add_argument("--work", required=True, help=f"{', '.join(WORKS)} or all")
    parser.add_argument("--peers", default="all", help="names with commas between, all, or none")
    parser.add_argument("--rounds", type=int, default=scores.FEWEST.rounds, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=scores.FEWEST.warmup, help="rounds before them")
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
    rules = Rules(
        rounds=known.rounds,
        warmup=known.warmup,
        cores=cores.count(),
        layout=known.layout,
        pythons=dict(_interpreter(text) for text in known.python),
    )
    works = [WORKS[name].resized(known.clients, known.examples) for name in _chosen("--work", known.work, WORKS)]
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
        standings = Contest(work, command.peers, command.rules, say=lambda text: print(text, end="", flush=True)).run()
        console.print(scores.table(work, standings, command.rules))
        for remark in scores.remarks(standings, command.rules):
            print(remark, flush=True)
        records += scores.records(work, standings)
        if command.json:
            files.write(command.json, files.to_json(records, indent=1) + "\n")
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
