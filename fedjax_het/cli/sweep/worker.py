"""Processes that train groups of runs one after another, each group in one program.

A group is a file, [{"config": a file, "set": {"algorithm.lam": "0.1"}, "workdir": a directory}, ...]. Its runs differ
only in seeds and real numbers of the algorithm. Each writes the directory that `fedjax-het train` would write, but no
pictures.
"""

import gc
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Self

from fedjax_het.cli import collect_garbage_rarely
from fedjax_het.cli.configuration import config_files, settings
from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.distributed import layouts
from fedjax_het.cli.runs.run_directory import RunDirectory
from fedjax_het.cli.runs.run_files import RESOLVED, read_json
from fedjax_het.cli.train import Run, train_together

_CONTEXT = get_context("spawn")  # a fork of this process would share the threads of XLA


def read_runs(path: Path) -> list[Run]:
    """Read a group and check each run's settings and directory.

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
def train_group(runs_file: Path) -> int:
    """Train the runs of a file in one program; return the exit status, as of `fedjax-het train`."""
    runs = read_runs(runs_file)
    train_together(runs, runs[0].directory.read(RESOLVED) or {})
    return 0


class Worker:
    """A process that trains one group of runs after another.

    It is replaced after a failure, and for another layout, because the number of CPU devices of a process is fixed.
    """

    def __init__(self, cores: Sequence[int]):
        """Start nothing yet; cores: those of the process."""
        self._cores, self._layout = cores, ""
        self._running: tuple[BaseProcess, Connection] | None = None

    def start(self, runs_file: Path, log: Path, layout: str) -> None:
        """Begin to train a group, with its output appended to a file.

        Args:
            runs_file: see `read_runs`.
            log: the file of the output.
            layout: the layout of the runs.
        """
        if self._running is not None and (layout != self._layout or not self._running[0].is_alive()):
            self.stop()
        if self._running is None:
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_serve, args=(theirs, self._cores), daemon=True)
            process.start()
            theirs.close()
            self._layout, self._running = layout, (process, ours)
        self._running[1].send((runs_file, log))

    def wait(self, seconds: float) -> int | None:
        """Wait for the end of the group; return the exit status of its program, or None after this time."""
        assert self._running is not None  # `start` was called
        process, connection = self._running
        if not connection.poll(seconds):
            return None
        try:
            code = connection.recv()
        except (EOFError, ConnectionError):  # the process has ended
            process.join()
            code = process.exitcode
        if code:
            self.stop()
        return code

    def stop(self) -> None:
        """End the process, whatever it does."""
        if self._running is not None:
            process, connection = self._running
            process.kill()
            process.join()
            connection.close()
            self._running = None


class Workers:
    """The processes that train the groups of grids, until the context ends.

    Attributes:
        together: the largest number of runs in one program; their memory adds up.
        jobs: the number of programs side by side, each on its share of the cores.
    """

    def __init__(self, together: int = 8, jobs: int = 1):
        """Start nothing yet."""
        self.together, self.jobs = together, jobs
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        for cores in layouts.share_cores(jobs):
            self._idle.put(Worker(cores))

    @contextmanager
    def take(self) -> Iterator[Worker]:
        """Wait for one that no other thread has taken, and use it in this context."""
        worker = self._idle.get()
        try:
            yield worker
        finally:
            self._idle.put(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """End the processes."""
        for _ in range(self.jobs):
            with self.take() as worker:
                worker.stop()


def _serve(connection: Connection, cores: Sequence[int]) -> None:
    """Train the groups whose files arrive, on some cores."""
    layouts.restrict_to_cores(cores)
    collect_garbage_rarely()
    while True:
        try:
            runs_file, log = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        with open(log, "a") as file:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(file.fileno(), stream.fileno())
        code = 1
        try:
            with warnings.catch_warnings():  # a warning is shown once per group
                code = train_group(runs_file)
        except Exception:
            traceback.print_exc()
        sys.stdout.flush()
        gc.collect()
        connection.send(code)
