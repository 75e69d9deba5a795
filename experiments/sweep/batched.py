"""Train runs that differ in numbers alone side by side, as one program: python -m experiments.sweep.batched RUNS.json

RUNS.json: [{"config": a file, "set": {"algorithm.lam": "0.1"}, "workdir": a directory}, ...]. Each becomes the run that
`experiments.train` makes, in a directory of its own; what differs in more than numbers becomes programs of its own.
Written and started by `experiments.compare`. Exit status as of `experiments.train`.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fedjax_het.errors import InputError, NonFiniteError, Unlike

from ..configuration import settings
from ..runs.run_directory import RunDirectory
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


def train(runs: Sequence[Run]) -> None:
    """As few programs as there can be, one after another."""
    waiting = [list(runs)]
    while waiting:
        group = waiting.pop(0)
        try:
            as_one_program(group, group[0].directory.read("choices.json") or {})
        except Unlike as error:
            waiting[:0] = [[group[index] for index in indices] for indices in error.groups]


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    keep_programs()
    try:
        train(read(Path(*argv)))
    except (InputError, NonFiniteError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
