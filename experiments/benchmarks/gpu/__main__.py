"""Measurements on a GPU: python -m experiments.benchmarks.gpu --json=gpu.json --minutes=9

Each part runs in processes of its own: variants of convolutions and layouts (variants), rounds of the benchmark's
workloads beside PyTorch on the same GPU (peers), ResNet-18 and the tutorials' network at sizes that others report
(resnet, tutorial), the cost of editing updates (aggregators), a killed run that is resumed bit for bit (resume), the
kernels of a round (profile), settings of the compiler (flags), and a selection of the tests (tests).

Each figure is written as soon as it is measured and is not measured again: the same command continues where --minutes
ended it. The results are printed as Markdown tables; --show prints a file and measures nothing.
Exit status: 0 = the file is complete, 1 = something failed or is left, 2 = a mistake in the arguments.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from absl.flags import argparse_flags

from fedjax_het.errors import InputError

from ...configuration.command_line import with_exit_status
from ...runs.setting_text import parse_layout, select_names
from ..figure_file import FigureFile, format_table
from ..rounds import check_json_path
from . import tasks
from .parts import PARTS, Piece, Plan, TaskFailedError, run_task


def measure(file: FigureFile, pieces: Iterable[Piece], until: float) -> list[str]:
    """Measure what is missing in the file, and return the names that are left.

    A piece starts only if half of its time is left.
    """
    left = []
    for piece in pieces:
        missing = file.missing(piece.part, piece.names)
        if not missing:
            continue
        if until - time.monotonic() < piece.seconds / 2:
            left += missing
            continue
        print(f"{piece.part}: {missing[0]}{f' and {len(missing) - 1} more' if missing[1:] else ''}", flush=True)
        limit = min(piece.seconds, until - time.monotonic())
        reason = "the task ended without this figure"
        try:
            for record in piece.run(missing, limit):
                file.add(piece.part, record)
        except TaskFailedError as error:
            reason = str(error)
        if time.monotonic() > until:
            left += file.missing(piece.part, piece.names)
            continue
        for name in file.missing(piece.part, piece.names):
            file.add(piece.part, {"name": name, "error": reason})
    return left


def _parse_command(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse_flags.ArgumentParser(prog="python -m experiments.benchmarks.gpu", allow_abbrev=False)
    parser.add_argument("--json", type=Path, required=True, help="the file of figures, continued if it exists")
    parser.add_argument("--parts", default="all", help=f"{', '.join(PARTS)}, comma-separated, or all")
    parser.add_argument("--minutes", type=float, default=1e6, help="stop after so many minutes")
    parser.add_argument("--platform", default="cuda", choices=("cuda", "cpu"), help="cpu is for a trial")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, for a trial of the command")
    parser.add_argument(
        "--layout", default="", help="of fedjax_het in peers, tutorial and flags; the default is vmapped"
    )
    parser.add_argument("--conv", default="auto", help="of fedjax_het in peers, tutorial, flags and profile")
    parser.add_argument("--show", action="store_true", help="print the file and measure nothing")
    flags = parser.parse_args(list(argv))
    flags.parts = select_names("--parts", flags.parts, PARTS)
    if not flags.minutes > 0:
        raise InputError(f"--minutes: must be more than 0, not {flags.minutes}.")
    check_json_path(flags.json)
    if flags.layout:
        parse_layout(flags.layout)
    return flags


def run_command(flags: argparse.Namespace) -> int:
    file, begun = FigureFile(flags.json), time.monotonic()
    left = []
    if not flags.show:
        plan = Plan(flags.platform, flags.tiny, flags.layout, flags.conv)
        os.environ |= plan.environment
        try:
            (about,) = run_task(tasks.describe_device, {}, 120)
        except TaskFailedError as error:
            raise InputError(f"--platform: JAX finds no {flags.platform} device here ({str(error)[-200:]}).") from error
        file.describe(about)
        pieces = [piece for name in flags.parts for piece in PARTS[name](plan)]
        left = measure(file, pieces, begun + 60 * flags.minutes)
    print(f"{file.about.get('device')}, {file.about.get('versions')}\n")
    measured = {record["part"] for record in file.records}
    for part in flags.parts:
        if part in measured:
            print(format_table(part, file.records))
    failed = [record["name"] for record in file.records if record.get("error") or record.get("failed")]
    for label, names in (("failed", failed), ("left", left)):
        if names:
            print(f"{label}:", *names, sep="\n  ")
    return int(bool(failed or left))


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    return run_command(_parse_command(argv))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no contender is left behind
    sys.exit(main(sys.argv[1:]))
