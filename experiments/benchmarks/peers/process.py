"""Control of a contender's process, which runs `worker.py`: its start, its questions, and its end."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from fedjax_het.cli import module_command, module_environment
from fedjax_het.engine.parallel.compilation import MIN_KEPT_SECONDS

ANSWER_TIMEOUT = 1800  # seconds for one answer
_LOG_TAIL = 4000  # characters of what a process wrote before it crashed


class ContenderError(RuntimeError):
    """Raised if a contender ends or stops answering; the message is the end of its output."""


class ContenderProcess:
    """A contender's worker in a session of its own. It computes only between a question and its answer."""

    def __init__(
        self, contender: str, arguments: list[str], python: str, directory: Path, timeout: float = ANSWER_TIMEOUT
    ):
        self._log, self._timeout = directory / f"{contender}.log", timeout
        with self._log.open("w") as log:
            process = subprocess.Popen(
                module_command("experiments.benchmarks.peers.worker", contender, *arguments, python=python),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=make_environment(directory),
                start_new_session=True,
                bufsize=0,
            )
        assert process.stdin and process.stdout  # they are pipes
        self._process, self._stdin, self._stdout = process, process.stdin, process.stdout

    def read_greeting(self) -> dict[str, Any]:
        """Its first answer, with `seconds` since the start. Raises ContenderError."""
        before = time.perf_counter()
        words = self._answer()
        return words | {"seconds": time.perf_counter() - before}

    def ask(self, *words: str) -> dict[str, Any]:
        """Send a command and return its answer. Raises ContenderError."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(" ".join(words).encode() + b"\n")
        return self._answer()

    def end(self) -> None:
        """Close its input, so that it ends, and kill all processes that are left."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stdout.close()

    def _answer(self) -> dict[str, Any]:
        is_there, _, _ = select.select([self._stdout], [], [], self._timeout)
        if not is_there:
            raise ContenderError(f"no answer in {self._timeout} s. {self._read_log_tail()}")
        line = bytearray()
        while not line.endswith(b"\n"):
            if not (part := self._stdout.read(65536)):
                raise ContenderError(self._read_log_tail() or "it ended without any output")
            line += part
        return json.loads(line)

    def _read_log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_TAIL:].strip()


def make_environment(directory: Path) -> dict[str, str]:
    """The environment of a contender: CPU unless JAX_PLATFORMS says otherwise, and the same devices for all.

    Compiled programs are kept in this directory alone, so that only a second start of a contender finds any.
    """
    chosen = {"JAX_PLATFORMS": "cpu"} | module_environment()
    chosen |= {
        "JAX_COMPILATION_CACHE_DIR": str(directory / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(MIN_KEPT_SECONDS),
    }
    return chosen | ({"CUDA_VISIBLE_DEVICES": ""} if chosen["JAX_PLATFORMS"] == "cpu" else {})
