"""A report that follows its runs."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedjax_het.errors import InputError

from .contents import contents
from .run_paths import directories_of, runs
from .run_reader import stamp
from .writer import Report

POLL = 3.0  # seconds


def watch(report: Report, paths: Sequence[Path]) -> None:
    """Write, and again whenever a run's files change, until interrupted; then once more, as a page that stands still.

    Raises InputError where the first page cannot be written. Later, files that cannot be read are told of, and the page
    stays as it was until they can be.
    """
    seen = _stamps(paths)  # before reading: what changes while figures are drawn is seen the next time
    report.write(contents(*runs(paths)), is_watched=True)
    print(f"{report.out} follows its runs; interrupt to stop", flush=True)
    try:
        while True:
            time.sleep(POLL)
            if (now := _stamps(paths)) != seen:
                seen = now
                _write(report, paths, is_watched=True)
    except KeyboardInterrupt:
        _write(report, paths, is_watched=False)


def _write(report: Report, paths: Sequence[Path], is_watched: bool) -> None:
    try:
        report.write(contents(*runs(paths)), is_watched)
        print(f"{time.strftime('%H:%M:%S')} {report.out}", flush=True)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)


def _stamps(paths: Sequence[Path]) -> dict[Path, list[int]]:
    """When the files of which runs changed; of a path that cannot be read now, none."""
    found = {}
    for path in paths:
        try:
            found |= {directory: stamp(directory) for directory in directories_of(path)[0]}
        except (InputError, OSError):
            found[path] = []
    return found
