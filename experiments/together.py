"""Train runs that differ in numbers alone side by side, as one program: python -m experiments.together RUNS.json

RUNS.json: [{"config": a file, "set": {"algorithm.lam": "0.1"}, "workdir": a directory}, ...]. Each becomes the run that
`experiments.train` makes, in a directory of its own; what differs in more than numbers becomes programs of its own.
Written and started by `experiments.compare`. Exit status as of `experiments.train`.
"""

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from experiments import build, settings
from experiments.record import Record
from experiments.rundir import RunDirectory
from experiments.train import ELSEWHERE
from experiments.training import Training
from fedjax_het.cache import cache_folder
from fedjax_het.errors import InputError, NonFiniteError, Unlike


class Run(NamedTuple):
    settings: settings.Settings
    directory: RunDirectory


def read(path: Path) -> list[Run]:
    """Raises InputError for settings that cannot be read, and for directories of other runs."""
    runs = []
    for each in json.loads(path.read_text()):
        chosen, _ = settings.complete(settings.load(Path(each["config"])), each["set"])
        runs.append(Run(chosen, RunDirectory(each["workdir"])))
        runs[-1].directory.check(chosen)
    return runs


def train(runs: Sequence[Run]) -> None:
    """As few programs as there can be, one after another."""
    waiting = [list(runs)]
    while waiting:
        group = waiting.pop(0)
        try:
            _train(group)
        except Unlike as error:
            waiting[:0] = [[group[index] for index in indices] for indices in error.groups]


def _train(runs: Sequence[Run]) -> None:
    first, directory = runs[0]
    earlier = directory.read("choices.json") or {}
    parts = build.parts(first, earlier)
    for each in runs:
        each.directory.check_partition(parts.federation.fingerprint)
    others, names = [each.settings for each in runs[1:]], [each.directory.path.name for each in runs]
    beside = names if others else []
    simulation = build.simulation(parts, first, directory.path, others)
    choices = build.choices(parts, simulation, beside)
    if earlier and (not parts.kept or earlier.get("beside", []) != beside):
        print(ELSEWHERE)
    print(f"one program, compiled in {simulation.facts.compile_seconds:.1f} s: {', '.join(names)}", flush=True)
    with contextlib.ExitStack() as stack:
        for each in runs:
            stack.enter_context(each.directory.held())
        Training(simulation, [_record(runs, i, choices, parts, simulation) for i in range(len(runs))]).run()


def _record(runs: Sequence[Run], place: int, choices: dict[str, Any], parts: build.Parts, simulation) -> Record:
    chosen, directory = runs[place]
    facts = simulation.facts_of_each[place]
    return Record(directory, chosen, choices, parts.federation, facts, beside=(place, len(runs)))


def main(argv: Sequence[str]) -> int:
    """The exit status."""
    if not jax.config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "programs"))
    try:
        train(read(Path(*argv)))
    except (InputError, NonFiniteError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
