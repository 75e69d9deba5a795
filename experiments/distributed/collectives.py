"""The processes that train together: who this one is, what they tell one another, and how they end.

Words go through the coordination service of JAX's runtime; numbers go by the collectives of the compiled programs.
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
from jax._src.distributed import global_state  # JAX hands out its client nowhere else; Orbax takes it from here too

from fedjax_het.errors import InputError, NonFiniteError

RESUMES = "the same command goes on from the last checkpoint"
_FOREVER = 10**9  # seconds; JAX itself ends a process that waits for one that is lost
_LAST_WORD = 60  # seconds that others are given to hear why this process cannot go on
_OF_RUNTIME = re.compile(r"[A-Z_]+: ")  # how JAX's own errors begin: "UNKNOWN: Gloo all-reduce failed: ..."


class Agreement(InputError):
    """An InputError that is raised in all processes, so that one of them says it for all."""


class Processes:
    """All processes of a run, seen from one. Names of what is said are used once in a run, and by all."""

    def __init__(self, index: int = 0, count: int = 1, heartbeat_timeout: int = 0):
        """heartbeat_timeout: seconds without a sign of life after which JAX takes a process for lost."""
        self.index, self.count, self._heartbeat_timeout = index, count, heartbeat_timeout

    @property
    def is_first(self) -> bool:
        """Whether this is the one that decides, writes and prints."""
        return self.index == 0

    def __str__(self) -> str:
        return f"process {self.index} of {self.count}"

    # ---- what they say -----------------------------------------------------------------------------------------------
    def all_gather(self, name: str, value: Any) -> list[Any]:
        """What each of them says, in JSON's types, in their order."""
        self._say(name, value)
        return [self._heard(name, index) for index in range(self.count)] if self.count > 1 else [value]

    def broadcast(self, name: str, value: Any) -> Any:
        """What the first one says, whatever the others would."""
        if self.is_first:
            self._say(name, value)
        return value if self.is_first else self._heard(name, 0)

    def check_count(self) -> None:
        """Raises InputError where this process counts other than the first one."""
        if (counted := self.broadcast("count", self.count)) != self.count:
            raise InputError(f"--num_processes: {counted} for process 0, {self.count} for process {self.index}.")

    @contextlib.contextmanager
    def barrier(self, name: str) -> Iterator[None]:
        """Nobody goes on behind this block before all have come through it.

        Raises Agreed in all of them where one of them raises InputError inside; that InputError where it is the only
        process and where the others do not come to hear it.
        """
        own = None
        try:
            yield
        except InputError as error:
            own = error
        said = [own] if self.count == 1 else self._complaints(name, own)
        complaints = [index for index, complaint in enumerate(said) if complaint]
        if own and (self.count == 1 or not said):
            raise own
        if complaints:
            who = "" if len(complaints) == self.count else f"process {complaints[0]} of {self.count}: "
            raise Agreement(who + said[complaints[0]]) from own

    def _complaints(self, name: str, own: InputError | None) -> list[str | None]:
        """What each of them cannot go on for; empty where this one cannot, and some are not there to hear it."""
        name = f"agreed {name}"
        self._say(name, str(own) if own else None)
        until = time.monotonic() + (_LAST_WORD if own else _FOREVER)
        try:
            return [self._heard(name, index, until) for index in range(self.count)]
        except TimeoutError:
            return []

    def _say(self, name: str, value: Any) -> None:
        if self.count > 1:
            global_state.client.key_value_set(f"fedjax_het/{name}/{self.index}", json.dumps(value))

    def _heard(self, name: str, index: int, until: float = float("inf")) -> Any:
        """Asks a second at a time, so that it can be interrupted. Raises TimeoutError after `until`."""
        while time.monotonic() < until:
            try:
                return json.loads(global_state.client.blocking_key_value_get(f"fedjax_het/{name}/{index}", 1000))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
        raise TimeoutError(name)

    # ---- how they print and end --------------------------------------------------------------------------------------
    @contextlib.contextmanager
    def only_first_prints(self) -> Iterator[None]:
        if self.is_first:
            yield
        else:
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                yield

    def end(self, status: int, error: BaseException | str) -> int:
        """The exit status, after a message that all processes together print once."""
        is_everyones = self.count == 1 or isinstance(error, (Agreement, NonFiniteError))
        if self.is_first or not is_everyones:
            print(error if isinstance(error, str) else f"error: {error}", file=sys.stderr)
        return status if is_everyones else self._leave(status)

    def crash(self, error: Exception) -> int:
        """End with a traceback, unless the error comes from another's end: then JAX ends this process too."""
        if _OF_RUNTIME.match(str(error)):
            first_line = str(error).splitlines()[0]
            print(f"{self}: {first_line}\nwaiting to hear from JAX whether another was lost ...", file=sys.stderr)
            time.sleep(self._heartbeat_timeout + 10)
        traceback.print_exception(error)
        return self._leave(1)

    def _leave(self, status: int) -> int:
        """Without saying goodbye, for which JAX would wait for the others, who may wait for this one."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


ALONE = Processes()
