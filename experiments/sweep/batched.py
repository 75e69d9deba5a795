"""Train runs side by side, as one program: python -m experiments.sweep.batched RUNS.json

RUNS.json: [{"config": a file, "set": {"algorithm.lam": "0.1"}, "workdir": a directory}, ...], which differ in seeds and
real numbers of the algorithm alone. Each becomes the run that `experiments.train` makes, in a directory of its own.
Written and started by `experiments.compare`. Exit status as of `experiments.train`.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fedjax_het.errors import InputError, NonFiniteError

from ..configuration import settings
from ..runs.run_directory import RunDirectory
from ..runs.run_files import RESOLVED
from ..train import Run, as_one_program, keep_programs


def read(path: Path) -> list[Run]:
    """Raises InputError for settings that cannot be read, and for directories of other runs."""
    runs = []
    for each in json.loads(path.read_text()):
        chosen, _ = settings.complete_settings(settings.load_settings(Path(each["config"])), each["set"])
        runs.append(Run(chosen, RunDirectory(each["workdir"])))
        for note in runs[-1].directory.check(chosen).notes:
            print(f"note: {note}")
    return runs


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    keep_programs()
    try:
        runs = read(Path(*argv))
        as_one_program(runs, runs[0].directory.read(RESOLVED) or {})
    except (InputError, NonFiniteError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
