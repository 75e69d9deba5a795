"""The directory of one run: who may use it, what was there before, and where a resumed run goes on."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments import files
from fedjax_het.errors import InputError

OURS = ("metrics.jsonl", "summary.json", "checkpoints")


class RunDirectory:
    """`check` before anything costly, `open` before the first file is written."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._lock: int | None = None

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raises InputError where the directory cannot be written, or holds the run of other settings."""
        files.check_writable(self.path)
        before = self.read("config.json")
        if before is None:
            if found := [name for name in OURS if (self / name).exists()]:
                raise InputError(f"--workdir: '{self.path}' holds {found[0]} but no config.json. Choose another.")
        elif differing := list(differences(before, json.loads(files.to_json(settings)))):
            raise InputError(
                f"--workdir: '{self.path}' holds a run of another config. Choose another directory, or go back to its"
                " settings (key: there / here):\n" + "\n".join(f"  {line}" for line in differing)
            )

    def check_partition(self, fingerprint: str) -> None:
        """Raises InputError where the run in the directory was made on another partition: its data have changed."""
        before = (self.read("partition.json") or {}).get("fingerprint", fingerprint)
        if before != fingerprint:
            raise InputError(
                f"--workdir: the run in '{self.path}' was made on other data: partition {before[:12]} there,"
                f" {fingerprint[:12]} here. Restore the data, or choose another directory."
            )

    def __enter__(self) -> "RunDirectory":
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            return json.loads((self / name).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"--workdir: '{self / name}' cannot be read: {error}. Choose another one.") from error

    def write(self, name: str, value: Any) -> None:
        files.write(self / name, files.to_json(value, indent=2) + "\n")


def differences(there: Any, here: Any, key: str = "config") -> Iterator[str]:
    """A line "key: there / here" for every leaf in which two tables differ."""
    if isinstance(there, dict) and isinstance(here, dict):
        for name in there | here:
            yield from differences(there.get(name, "unset"), here.get(name, "unset"), f"{key}.{name}")
    elif there != here:
        yield f"{key}: {there} / {here}"
