"""The figures of a GPU: python -m experiments.benchmarks.gpu --json=gpu.json --minutes=9

Measures in pieces, each in processes of its own: ways to compute convolutions and to lay clients out (ways), rounds of
the benchmark's works beside PyTorch on the same GPU (contest), ResNet-18 and the tutorials' network at the sizes that
others report (resnet, tutorial), what editing updates costs (aggregators), a killed run that is resumed to the bit
(resume), where a round's time goes (profile), settings of the compiler (flags), and a selection of the tests (tests).

Each figure is in the file as soon as it is known, and what is in the file is not measured again: the same command goes
on where --minutes ended it. Every piece is printed as a table in Markdown; --show prints a file and measures nothing.
Exit status: 0 = everything asked for is in the file, 1 = something failed or is left, 2 = a mistake in what was asked.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from absl.flags import argparse_flags

from fedjax_het.errors import InputError, nearest

from ...runs import json_files
from ...runs.setting_text import parse_layout
from .parts import PARTS, Ended, Piece, Plan, task
from .tasks import Record


class File:
    """The records, on disk at any moment."""

    def __init__(self, path: Path):
        """Raises InputError for a file that holds something else."""
        self._path, self.about, self.records = path, {}, []
        if path.exists():
            try:
                held = json.loads(path.read_text())
                self.about, self.records = held["about"], held["records"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(f"--json: '{path}' holds no figures of this command. Give another file.") from error

    def add(self, part: str, record: Record) -> None:
        self.records.append({"part": part} | record)
        self._write()

    def describe(self, about: Record) -> None:
        """Raises InputError where the records are of another device."""
        if self.about and self.about["device"] != about["device"]:
            raise InputError(
                f"--json: '{self._path}' is of '{self.about['device']}', and this is '{about['device']}'. Another file."
            )
        self.about = about
        self._write()

    def missing(self, piece: Piece) -> list[str]:
        there = {record["name"] for record in self.records if record["part"] == piece.part}
        return [name for name in piece.names if name not in there]

    def _write(self) -> None:
        json_files.write(
            self._path, json_files.to_json({"about": self.about, "records": self.records}, indent=1) + "\n"
        )


def measure(file: File, pieces: Iterable[Piece], until: float) -> list[str]:
    """Fill the file; a piece begins if half of its time is left. The names of what is still missing."""
    left = []
    for piece in pieces:
        wanted = file.missing(piece)
        if not wanted:
            continue
        if until - time.monotonic() < piece.seconds / 2:
            left += wanted
            continue
        print(f"{piece.part}: {wanted[0]}{f' and {len(wanted) - 1} more' if wanted[1:] else ''}", flush=True)
        limit = min(piece.seconds, until - time.monotonic())
        reason = "nothing was said of it"
        try:
            for record in piece.run(wanted, limit):
                file.add(piece.part, record)
        except Ended as error:
            reason = str(error)
        if time.monotonic() > until:
            left += file.missing(piece)
            continue
        for name in file.missing(piece):
            file.add(piece.part, {"name": name, "error": reason})
    return left


def table(part: str, records: Sequence[Record]) -> str:
    """In Markdown, a row a record; lists are left to the file."""
    rows = [record for record in records if record["part"] == part and not record.get("is_done")]
    shown = [
        {key: value for key, value in row.items() if key != "part" and not isinstance(value, list)} for row in rows
    ]
    columns = list(dict.fromkeys(key for row in shown for key in row))
    lines = [columns, ["---"] * len(columns), *([_text(row.get(column)) for column in columns] for row in shown)]
    return f"{part}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value).replace("|", "/").replace("\n", " ")


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse_flags.ArgumentParser(prog="python -m experiments.benchmarks.gpu", allow_abbrev=False)
    parser.add_argument("--json", type=Path, required=True, help="the file that holds the figures, and takes more")
    parser.add_argument("--parts", default="all", help=f"{', '.join(PARTS)}, with commas between; or all")
    parser.add_argument("--minutes", type=float, default=1e6, help="nothing goes on for longer than this")
    parser.add_argument("--platform", default="cuda", choices=("cuda", "cpu"), help="cpu is for trying out")
    parser.add_argument("--tiny", action="store_true", help="sizes that only try the command out")
    parser.add_argument("--layout", default="", help="of ours in contest, tutorial and flags; else vmapped")
    parser.add_argument("--conv", default="auto", help="of ours in contest, tutorial, flags and profile")
    parser.add_argument("--show", action="store_true", help="print what the file holds, and measure nothing")
    known = parser.parse_args(list(argv))
    known.parts = list(PARTS) if known.parts == "all" else [name.strip() for name in known.parts.split(",")]
    for name in known.parts:
        if name not in PARTS:
            raise InputError(f"--parts: there is no '{name}'. {nearest(name, [*PARTS, 'all'])}")
    if not known.minutes > 0:
        raise InputError(f"--minutes: more than 0, not {known.minutes}.")
    if known.json.is_dir() or not os.access(known.json.absolute().parent, os.W_OK):
        raise InputError(f"--json: cannot write '{known.json}'. Give a file in a directory that is there.")
    if known.layout:
        parse_layout(known.layout)
    return known


def run(known: argparse.Namespace) -> int:
    file, begun = File(known.json), time.monotonic()
    left = []
    if not known.show:
        plan = Plan(known.platform, known.tiny, known.layout, known.conv)
        os.environ |= plan.environment
        try:
            file.describe(next(iter(list(task("about", {}, 120)))))
        except Ended as error:
            raise InputError(f"--platform: JAX finds no {known.platform} device here ({str(error)[-200:]}).") from error
        pieces = [piece for name in known.parts for piece in PARTS[name](plan)]
        left = measure(file, pieces, begun + 60 * known.minutes)
    print(f"{file.about.get('device')}, {file.about.get('versions')}\n")
    measured = {record["part"] for record in file.records}
    for part in known.parts:
        if part in measured:
            print(table(part, file.records))
    failed = [record["name"] for record in file.records if record.get("error") or record.get("failed")]
    for label, names in (("failed", failed), ("left for another time", left)):
        if names:
            print(f"{label}:", *names, sep="\n  ")
    return int(bool(failed or left))


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    try:
        return run(_parsed(argv))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no contender is left behind
    sys.exit(main(sys.argv[1:]))
