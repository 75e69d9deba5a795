"""Training of the runs of a grid in other processes, several of them in one program and several programs at a time."""

import contextlib
import re
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_het._internal.regular_files import open_regular, read_regular
from fedjax_het.cli.distributed import layouts
from fedjax_het.cli.runs import json_files
from fedjax_het.cli.runs.run_directory import RunDirectory
from fedjax_het.cli.sweep.grid import GridRun, group_runs
from fedjax_het.cli.sweep.worker import Worker, Workers
from fedjax_het.cli.training import terminal
from fedjax_het.errors import InputError

LOG = "train.log"
_LOG_INTERVAL = 1.0  # seconds between two looks into a run's log
_STOPPED = 130  # the exit status of a program that this process has stopped


class GridResult(NamedTuple):
    """How a run of a grid ended."""

    run: GridRun
    directory: Path
    status: str  # "done", "was done", or the error
    seconds: float  # of its process
    num_others: int = 0  # the other runs of the process

    @property
    def is_done(self) -> bool:
        return self.status in ("done", "was done")

    def to_record(self) -> dict[str, Any]:
        """Make its record in grid.json."""
        run = self.run
        return {"cell": run.name, "config": str(run.config), "set": run.overrides, "status": self.status}


def add_parallelism_flags(parser: ArgumentParser) -> None:
    defaults = Workers()
    parser.add_argument(
        "--together",
        type=int,
        default=defaults.together,
        metavar="N",
        help="train at most N runs in one program if they differ only in seeds and real numbers of the algorithm "
        "(default %(default)s)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=defaults.jobs,
        metavar="N",
        help="train N programs side by side on a CPU, each on its share of the cores (default %(default)s)",
    )


def read_parallelism(flags: Namespace) -> Workers:
    """Raises InputError for numbers that are not possible."""
    cores = layouts.count_cores()
    if flags.together < 1:
        raise InputError(f"--together={flags.together}: must be at least 1, which trains each run by itself.")
    if not 1 <= flags.jobs <= cores:
        raise InputError(f"--jobs={flags.jobs}: must be from 1 to {cores}, the number of cores.")
    return Workers(flags.together, flags.jobs)


def run_grid(runs: Sequence[GridRun], workdir: Path, workers: Workers | None = None) -> Iterator[GridResult]:
    """Train the runs that are not complete, and print one line per run.

    Programs run in processes of their own, so that an error that ends one, such as a lack of memory, does not end the
    others. If a program of several runs fails, each of them is trained by itself. Pictures of runs are not drawn.

    Args:
        runs: the runs of the grid.
        workdir: the parent of their directories.
        workers: the processes that train; None: new ones, which end with this grid.

    Yields:
        The results as they are done, complete runs first.
    """
    with contextlib.nullcontext(workers) if workers else Workers() as present:
        for number, result in enumerate(_train_runs(runs, workdir, present), 1):
            seconds = f", {result.seconds:.0f} s" if result.seconds else ""
            others = f" together with {result.num_others} more" if result.num_others else ""
            print(f"[{number}/{len(runs)}] {result.run.name}: {result.status}{seconds}{others}", flush=True)
            yield result


def _train_runs(runs: Sequence[GridRun], workdir: Path, workers: Workers) -> Iterator[GridResult]:
    incomplete = []
    for run in runs:
        if _is_done(run, workdir):
            yield GridResult(run, workdir / run.name, "was done", 0.0)
        else:
            incomplete.append(run)
    num_rounds = {run.name: run.settings()["rounds"] for run in incomplete}
    groups, done = group_runs(incomplete, workers.together), dict.fromkeys(num_rounds, 0)
    with (
        terminal.show_progress(0, sum(num_rounds.values()), interval=30) as progress,
        ThreadPoolExecutor(workers.jobs) as pool,
    ):

        def show(group: Sequence[GridRun], rounds: int, text: str) -> None:
            done.update(dict.fromkeys([run.name for run in group], rounds))
            progress.show(sum(done.values()), text)

        trainer = _Trainer(workdir, workers, show)
        futures = [pool.submit(trainer.train, group) for group in groups]
        try:
            for future in as_completed(futures):
                done |= {result.run.name: num_rounds[result.run.name] for result in future.result()}
                yield from future.result()
        finally:
            trainer.is_stopped.set()
            pool.shutdown(cancel_futures=True)


def _is_done(run: GridRun, workdir: Path) -> bool:
    return RunDirectory(workdir / run.name).check(run.settings(), is_thorough=False).is_complete


_Show = Callable[[Sequence[GridRun], int, str], None]


class _Trainer:
    """Training of groups of runs in other processes, which several threads may start at the same time."""

    def __init__(self, workdir: Path, workers: Workers, show: _Show):
        """
        Args:
            workdir: the parent of the directories of runs.
            workers: the processes, one for each thread.
            show: shows the rounds that each run of a group has done, and the last line of their program.
        """
        self.workdir, self.workers, self.show, self.is_stopped = workdir, workers, show, threading.Event()

    def train(self, group: Sequence[GridRun]) -> list[GridResult]:
        """Train a group in one program; if that fails, each of its runs by itself."""
        with self.workers.take() as worker:
            results = self._train_together(group, worker)
            if len(group) > 1:
                failed = [result.run for result in results if not result.is_done]
                results = [result for result in results if result.is_done]
                results += [result for run in failed for result in self._train_together([run], worker)]
            return results

    def _train_together(self, group: Sequence[GridRun], worker: Worker) -> list[GridResult]:
        start, folder = time.perf_counter(), self.workdir / group[0].name
        folder.mkdir(parents=True, exist_ok=True)
        log, runs_file = folder / LOG, folder / "together.json"
        directories = [self.workdir / run.name for run in group]
        records = [
            {"config": str(run.config), "set": run.overrides, "workdir": str(directory)}
            for run, directory in zip(group, directories, strict=True)
        ]
        json_files.write(runs_file, json_files.to_json(records, indent=2) + "\n")
        code = self._run(worker, runs_file, log, group)
        status = ["done" if _is_done(run, self.workdir) else _find_error(log, code) for run in group]
        seconds, num_others = time.perf_counter() - start, len(group) - 1
        return [GridResult(*own, seconds, num_others) for own in zip(group, directories, status, strict=True)]

    def _run(self, worker: Worker, runs_file: Path, log: Path, group: Sequence[GridRun]) -> int:
        """Run a program with its output appended to a file, and show its rounds; return its exit status."""
        name = group[0].name + (f" and {len(group) - 1} more" if len(group) > 1 else "")
        log.touch()
        before, code = log.stat().st_size, None
        worker.start(runs_file, log, layout=group[0].settings()["layout"])
        while code is None:
            code = worker.wait(_LOG_INTERVAL)
            self.show(group, *_read_progress(log, before, name))
            if self.is_stopped.is_set():
                worker.stop()
                return _STOPPED
        return code


def _read_progress(log: Path, start: int, name: str) -> tuple[int, str]:
    """Read (the rounds done, the last line with the name of the run before it) from a log, from a position on."""
    with open_regular(log) as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    rounds = [int(found[1]) for line in lines if (found := re.match(r"round (\d+)/", line))]
    return (rounds or [0])[-1], f"{name}: {next(filter(str.strip, reversed(lines)), 'starting')}"


def _find_error(log: Path, code: int) -> str:
    """Return the exit status and the log's last error line, or its last line if there is none."""
    lines = [line for line in read_regular(log).decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "rror:" in line]
    return f"exit status {code}: {(errors or lines or ['no output'])[-1]}"
