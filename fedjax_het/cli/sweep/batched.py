"""Training of several runs in one program.

RUNS.json: [{"config": a file, "set": {"algorithm.lam": "0.1"}, "workdir": a directory}, ...]; the runs differ only in
seeds and real numbers of the algorithm. Each writes the directory that `fedjax-het train` would write, but no pictures.
"""

from collections.abc import Sequence
from pathlib import Path

from fedjax_het.cli.configuration import config_files, settings
from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.runs.run_directory import RunDirectory
from fedjax_het.cli.runs.run_files import RESOLVED, read_json
from fedjax_het.cli.train import Run, train_together


def read_runs(path: Path) -> list[Run]:
    """Read RUNS.json and check each run's settings and directory.

    Raises:
        InputError: Settings cannot be read, or a directory holds another run.
    """
    runs = []
    for entry in read_json(path):
        run_settings, _ = settings.complete_settings(config_files.load_config(entry["config"]), entry["set"])
        runs.append(Run(run_settings, RunDirectory(entry["workdir"])))
        for note in runs[-1].directory.check(run_settings).notes:
            print(f"note: {note}")
    return runs


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Train the runs of a file; return the exit status, as of `fedjax-het train`."""
    runs = read_runs(Path(*argv))
    train_together(runs, runs[0].directory.read(RESOLVED) or {})
    return 0
