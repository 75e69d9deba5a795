"""Collective operations of the processes that train together: exchange of values, barriers, output, exit.

Small values go through the coordination service of JAX's runtime; arrays go through the collectives of the compiled
programs.
"""

import contextlib
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import jax

from fedjax_het.errors import InputError, NonFiniteError

try:
    from jax._src.distributed import global_state  # JAX offers its client nowhere else; Orbax uses it too
except ImportError:  # it is not public: another JAX may keep it elsewhere, and a single process does not need it
    global_state: Any = None

RESUME_HINT = "the same command resumes from the last checkpoint"
_FOREVER = 10**9  # seconds; JAX itself ends a process that waits for one that is lost
_ERROR_TIMEOUT = 60  # seconds that other processes have to receive the error of this one
_RUNTIME_ERROR = re.compile(r"[A-Z_]+: ")  # the beginning of JAX's own errors: "UNKNOWN: Gloo all-reduce failed: ..."


class CollectiveInputError(InputError):
    """An InputError that is raised in all processes, so that one of them prints it for all."""


def _coordination_client() -> Any:
    if global_state.client is None:
        raise RuntimeError("JAX's distributed runtime is not initialized")
    return global_state.client


class Processes:
    """All processes of a run, as one of them sees them.

    The name of an exchanged value or a barrier is used once in a run, and by all processes.
    """

    def __init__(self, index: int = 0, count: int = 1, heartbeat_timeout: int = 0):
        """
        Args:
            index: the number of this process.
            count: the number of processes.
            heartbeat_timeout: seconds without a heartbeat after which JAX considers a process lost.
        """
        self.index, self.count, self._heartbeat_timeout = index, count, heartbeat_timeout

    @property
    def is_first(self) -> bool:
        """Whether this is the process that decides, writes and prints."""
        return self.index == 0

    def __str__(self) -> str:
        return f"process {self.index} of {self.count}"

    # ---- exchange ----------------------------------------------------------------------------------------------------
    def all_gather(self, name: str, value: Any) -> list[Any]:
        """Return the values of all processes, of JSON's types, in the order of the processes."""
        self._publish(name, value)
        return [self._receive(name, index) for index in range(self.count)] if self.count > 1 else [value]

    def broadcast(self, name: str, value: Any) -> Any:
        """Return the value of the first process."""
        if self.is_first:
            self._publish(name, value)
        return value if self.is_first else self._receive(name, 0)

    def check_count(self) -> None:
        """Raise InputError if this process and the first one were given different numbers of processes."""
        if (first := self.broadcast("count", self.count)) != self.count:
            raise InputError(f"--num_processes: {first} for process 0, {self.count} for process {self.index}.")

    @contextlib.contextmanager
    def barrier(self, name: str) -> Iterator[None]:
        """Let no process continue after this block before all have passed it.

        Raises:
            CollectiveInputError: In all processes, if one of them raises InputError inside the block.
            InputError: The error of this process, if it is the only one or the others do not receive it.
        """
        own = None
        try:
            yield
        except InputError as error:
            own = error
        errors = [] if self.count == 1 else self._exchange_errors(name, own)
        if own and not errors:
            raise own
        if failed := [(index, error) for index, error in enumerate(errors) if error]:
            index, error = failed[0]
            prefix = "" if len(failed) == self.count else f"process {index} of {self.count}: "
            raise CollectiveInputError(prefix + error) from own

    def _exchange_errors(self, name: str, own: InputError | None) -> list[str | None]:
        """Return the error of each process; empty if this one has an error and others do not answer."""
        name = f"agreed {name}"
        self._publish(name, str(own) if own else None)
        deadline = time.monotonic() + (_ERROR_TIMEOUT if own else _FOREVER)
        try:
            return [self._receive(name, index, deadline) for index in range(self.count)]
        except TimeoutError:
            return []

    def _publish(self, name: str, value: Any) -> None:
        if self.count > 1:
            _coordination_client().key_value_set(f"fedjax_het/{name}/{self.index}", json.dumps(value))

    def _receive(self, name: str, index: int, deadline: float = float("inf")) -> Any:
        """Wait for a value, one second at a time so that it can be interrupted; TimeoutError after `deadline`."""
        while time.monotonic() < deadline:
            try:
                return json.loads(_coordination_client().blocking_key_value_get(f"fedjax_het/{name}/{index}", 1000))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
        raise TimeoutError(name)

    # ---- output and exit ---------------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def only_first_prints(self) -> Iterator[None]:
        if self.is_first:
            yield
        else:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                yield

    def end(self, status: int, error: BaseException | str) -> int:
        """Print an error, once if all processes have it, and return the exit status."""
        is_collective = self.count == 1 or isinstance(error, (CollectiveInputError, NonFiniteError))
        if self.is_first or not is_collective:
            print(error if isinstance(error, str) else f"error: {error}", file=sys.stderr)
        return status if is_collective else self._exit(status)

    def crash(self, error: Exception) -> int:
        """Exit with a traceback, unless the error follows from the loss of another process: JAX then ends this one."""
        if _RUNTIME_ERROR.match(str(error)):
            first_line = str(error).splitlines()[0]
            print(
                f"{self}: {first_line}\nwaiting for JAX to report whether another process was lost ...", file=sys.stderr
            )
            time.sleep(self._heartbeat_timeout + 10)
        traceback.print_exception(error)
        return self._exit(1)

    def _exit(self, status: int) -> int:
        """Exit without JAX's shutdown, which would wait for the other processes, which may wait for this one."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


SINGLE = Processes()
