"""Processes that train groups of runs one after another, which share the imports of a process."""

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

from fedjax_het.cli.distributed import layouts
from fedjax_het.cli.sweep import batched

_CONTEXT = get_context("spawn")  # a fork of this process would share the threads of XLA


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
            runs_file: see `batched.read_runs`.
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
                code = batched.main([str(runs_file)])
        except Exception:
            traceback.print_exc()
        sys.stdout.flush()
        gc.collect()
        connection.send(code)
