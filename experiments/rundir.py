"""The directory of one run: who may use it, what was there before, and where a resumed run goes on."""

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments import files, inspection
from experiments.processes import ALONE, Processes
from experiments.run_files import DamagedFileError, read_json, read_table
from fedjax_het.errors import InputError

_OF_MACHINE = ("layout", "memory_budget", "client_states", "examples")
_OF_WATCHING = ("live",)
_SIGN = ".partial.sign"
_SEEN_WITHIN = 30  # seconds: network file systems remember for a while that a file is not there


class RunDirectory:
    """`check` before anything costly, `open` before the first file is written."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._lock: int | None = None
        self._before: inspection.DirectoryState | None = None  # as `check` found it

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def check(self, settings: Mapping[str, Any], is_thorough: bool = True) -> inspection.DirectoryState:
        """Read what an earlier start has left, as `inspection.inspect` does.

        Raises:
            InputError: Where the directory cannot be written, holds the run of other settings, or is damaged.
        """
        files.check_writable(self.path)
        self._check_settings(settings)
        self._before = before = inspection.inspect(self.path, settings, is_thorough)
        if before.identity is not None:
            self._check_same(before.identity, settings)
        return before

    def _check_settings(self, settings: Mapping[str, Any]) -> None:
        """What is said first of the run of other settings, whose other files could only look damaged."""
        with contextlib.suppress(DamagedFileError):
            if config := read_table(self / "config.json"):
                self._check_same(config, settings)

    def _check_same(self, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        if differing := list(differences(identity(before), json.loads(files.to_json(identity(settings))))):
            raise InputError(
                f"--workdir: '{self.path}' holds a run of another config. Choose another directory, or go back to its"
                " settings (key: there / here):\n" + "\n".join(f"  {line}" for line in differing)
            )

    def check_partition(self, fingerprint: str) -> None:
        """Raises InputError where the run in the directory was made on another partition: its data have changed."""
        before = self._before.partition if self._before else (self.read("partition.json") or {}).get("fingerprint")
        if before not in (None, fingerprint):
            raise InputError(
                f"--workdir: the run in '{self.path}' was made on other data: partition {before[:12]} there,"
                f" {fingerprint[:12]} here. Restore the data, or choose another directory."
            )

    @contextlib.contextmanager
    def held(self, processes: Processes = ALONE) -> Iterator[None]:
        """`open` by the first process. Raises InputError in all where it does, and where one sees another directory."""
        with processes.agreed("directory"):
            if processes.is_first:
                self.open()
        try:
            if processes.count > 1:
                self._check_shared(processes)
            yield
        finally:
            self.close()

    def _check_shared(self, processes: Processes) -> None:
        sign, text = self / _SIGN, processes.firsts("sign", uuid.uuid4().hex)
        if processes.is_first:
            sign.write_text(text)
        with processes.agreed("sign"):
            until = time.monotonic() + _SEEN_WITHIN
            while not sign.exists() or sign.read_text() != text:
                if time.monotonic() > until:
                    raise InputError(
                        f"--workdir: '{self.path}' is not the same directory for all processes. Choose one on a file "
                        "system that their hosts share."
                    )
                time.sleep(0.1)
        if processes.is_first:
            sign.unlink()

    def open(self) -> None:
        """Make the directory, and keep other processes out of it for as long as this one lives."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise InputError(f"--workdir: another process runs in '{self.path}'. Wait for it.") from error
        for leftover in self.path.glob(".partial.*"):
            leftover.unlink()

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def read(self, name: str) -> Any:
        """A JSON file of the directory, or None. Raises InputError where it is not JSON."""
        try:
            return read_json(self / name)
        except DamagedFileError as error:
            raise InputError(f"--workdir: {error} Let the run's own command say how to go on.") from error

    def write(self, name: str, value: Any) -> None:
        files.write(self / name, files.to_json(value, indent=2) + "\n")


def identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What makes it the same run: all but the layout and where things lie, which may change with the machine, and where
    it is followed."""
    return {key: value for key, value in settings.items() if key not in _OF_MACHINE + _OF_WATCHING}


def differences(there: Any, here: Any, key: str = "config") -> Iterator[str]:
    """A line "key: there / here" for every leaf in which two tables differ."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in there | here:
            yield from differences(there.get(name, "unset"), here.get(name, "unset"), f"{key}.{name}")
    elif there != here:
        yield f"{key}: {there} / {here}"
