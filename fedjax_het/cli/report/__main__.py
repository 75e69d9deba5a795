"""Write one page that compares runs: fedjax-het report runs/fedavg runs/fedld --out=report.html

A RUN is a directory of `fedjax-het train`, finished or not, or of `fedjax-het compare`. The folder report_files
beside the page holds every table as Markdown, LaTeX and CSV and every figure as PNG and SVG. With --watch the page is
written again whenever a run's files change. Exit status: 0 = written, 2 = an input error, printed on stderr.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.runs import json_files, results
from fedjax_het.errors import InputError


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line.

    Raises:
        InputError: The page cannot be written.
    """
    parser = argparse.ArgumentParser(
        prog="fedjax-het report", description="Write one page that compares runs.", allow_abbrev=False
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a directory of train or compare")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="the page (default report.html)")
    parser.add_argument("--watch", action="store_true", help="write the page again whenever a run's files change")
    parser.add_argument(
        "--target",
        type=float,
        action="append",
        default=[],
        metavar="SCORE",
        help="add a table of the rounds, seconds and bytes to this accuracy or Dice, such as 0.8; may be repeated",
    )
    parser.add_argument("--client", metavar="NAME", help="add a section about one client")
    parser.add_argument(
        "--confusion",
        action="store_true",
        help="add confusion matrices, for which the data and the last checkpoints of the runs are read",
    )
    flags = parser.parse_args(argv)
    if wrong := [target for target in flags.target if not 0 < target <= 1]:
        raise InputError(f"--target: expected a score between 0 and 1, got {wrong[0]:g}. Write 0.8 for 80 %.")
    if flags.out.suffix not in (".html", ".htm"):
        raise InputError(f"--out: '{flags.out}' is not the name of a page. End it in .html.")
    json_files.check_writable(flags.out.parent, "--out")
    return flags


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Write the page and return the exit status."""
    command = parse(argv)
    try:
        from fedjax_het.cli.report import contents, page
    except ModuleNotFoundError as error:
        raise InputError(f'the report needs {error.name}: pip install "fedjax-het[report]"') from error
    report, options = page.Report(command.out), (command.target, command.client, command.confusion)
    try:
        if command.watch:
            page.watch(report, command.runs, *options)
        else:
            report.write(contents.make_contents(*results.read_runs(command.runs), *options))
    except OSError as error:
        raise InputError(str(error)) from error
    print(f"written: {report.out}, and its tables and figures in {report.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
