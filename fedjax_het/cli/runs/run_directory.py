"""The directory of one run: its lock, the checks against an earlier run, and its JSON files."""

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedjax_het import engine
from fedjax_het.cli.distributed.collectives import SINGLE, Processes
from fedjax_het.cli.runs import inspection, json_files, records
from fedjax_het.cli.runs.run_files import METRICS, DamagedFileError, read_json, read_lines, read_table
from fedjax_het.data.splitting import AUTO, default_client_test_fraction
from fedjax_het.errors import InputError

_IDENTITY_EXCLUDES = ("layout", "memory_budget", "client_states", "examples", "live")
_SHARED_FILE = ".partial.sign"
_SHARED_TIMEOUT = 30  # seconds: network file systems cache for a while that a file does not exist


class RunDirectory:
    """`check` before anything costly, `open` before the first file is written."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._descriptor: int | None = None
        self._before: inspection.DirectoryState | None = None  # as `check` found it

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def check(self, settings: Mapping[str, Any], is_thorough: bool = True) -> inspection.DirectoryState:
        """Read the state that an earlier start has left; see `inspection.inspect`.

        Raises:
            InputError: The directory cannot be written, holds the run of other settings, or is damaged.
        """
        json_files.check_writable(self.path)
        self.check_settings(settings)  # first: the other files of another run would seem damaged
        rounds = settings["rounds"]
        before = min((self._undamaged("config.json") or {}).get("rounds", rounds), rounds)
        end = self._find_end(settings)
        with _naming_flag():
            state = inspection.inspect(self.path, {**settings, "rounds": end or before}, is_thorough)
        if before < rounds and not end:
            if state.is_complete and not inspection.has_checkpoint(self / "checkpoints", before, is_thorough):
                raise InputError(
                    f"--config.rounds: the run in '{self.path}' cannot continue: the checkpoint of its last round, "
                    f"{before}, is missing or damaged. Put it back, or choose another directory."
                )
            note = f"the run of {before} rounds in {self.path} continues to round {rounds}"
            state = state._replace(is_complete=False, notes=[*state.notes, note])
        self._before = state
        self.check_settings(settings)
        return state

    def _find_end(self, settings: Mapping[str, Any]) -> int | None:
        """Find the round at which early stopping has ended the run; None without such or in a damaged file."""
        with contextlib.suppress(InputError):
            if "stop" in settings:
                lines, stop = read_lines(self / METRICS)[0], engine.EarlyStopping(**settings["stop"])
                return records.find_end(lines, stop, settings["num_seeds"], settings["evaluate_every"])
        return None

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Raise InputError if the directory holds the run of other settings, by config.json or by a checkpoint.

        Settings that are "auto" until the data have been read are compared with the values that the directory holds;
        `build.resolve_auto` gives settings that are compared completely. A damaged file is ignored here.
        """
        partition = self._undamaged("partition.json")
        for before in (self._undamaged("config.json"), self._before.identity if self._before else None):
            if before:
                self._check_same(
                    before, _resolve_auto_from(json.loads(json_files.to_json(settings)), before, partition)
                )

    def _undamaged(self, name: str) -> dict[str, Any] | None:
        with contextlib.suppress(DamagedFileError):
            return read_table(self / name)

    def _check_same(self, before: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        old, new = run_identity(before), run_identity(new)
        if differing := list(describe_differences(old, new)):
            if old.get("rounds", 0) < new["rounds"] and (faults := _find_extension_faults(old, new)) is not None:
                if not faults:
                    return
                raise InputError(
                    f"--config.rounds: the run of {old['rounds']} rounds in '{self.path}' cannot continue to round "
                    f"{new['rounds']}. {' '.join(faults)} Or choose another directory."
                )
            raise InputError(
                f"--workdir: '{self.path}' holds a run of another config. Choose another directory, or go back to its"
                " settings (key: there / here):\n" + "\n".join(f"  {line}" for line in differing)
            )

    def check_partition(self, fingerprint: str) -> None:
        """Raise InputError if the run in the directory was made on other examples or on another partition of them."""
        before = self._before.partition if self._before else (self.read("partition.json") or {}).get("fingerprint")
        if before is not None and before != fingerprint:
            raise InputError(
                f"--workdir: the run in '{self.path}' was made on other data: fingerprint {before[:12]} there,"
                f" {fingerprint[:12]} here. Restore the data, or choose another directory."
            )

    @contextlib.contextmanager
    def lock(self, processes: Processes = SINGLE) -> Iterator[None]:
        """Hold the directory, which the first process opens.

        Raises:
            InputError: In all processes, if the directory cannot be opened or one of them sees another directory.
        """
        with processes.barrier("directory"):
            if processes.is_first:
                self.open()
        try:
            if processes.count > 1:
                self._check_shared(processes)
            yield
        finally:
            self.close()

    def _check_shared(self, processes: Processes) -> None:
        file, text = self / _SHARED_FILE, processes.broadcast("sign", uuid.uuid4().hex)
        if processes.is_first:
            file.write_text(text)
        with processes.barrier("sign"):
            deadline = time.monotonic() + _SHARED_TIMEOUT
            while not file.exists() or file.read_text() != text:
                if time.monotonic() > deadline:
                    raise InputError(
                        f"--workdir: '{self.path}' is not the same directory for all processes. Choose one on a file "
                        "system that their hosts share."
                    )
                time.sleep(0.1)
        if processes.is_first:
            file.unlink()

    def open(self) -> None:
        """Make the directory, and lock it against other processes until `close`."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise InputError(f"--workdir: another process runs in '{self.path}'. Wait for it.") from error
        for leftover in self.path.glob(".partial.*"):
            leftover.unlink()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read(self, name: str) -> Any:
        """Read a JSON file of the directory; None where there is no file.

        Raises:
            InputError: The file is not JSON.
        """
        with _naming_flag():
            return read_json(self / name)

    def write(self, name: str, value: Any) -> None:
        json_files.write(self / name, json_files.to_json(value, indent=2) + "\n")


@contextlib.contextmanager
def _naming_flag() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"--workdir: {error}") from error


def run_identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that identify a run: all but those of the machine and of trackers, which may change."""
    return {key: value for key, value in settings.items() if key not in _IDENTITY_EXCLUDES}


def is_continued_by(recorded: Mapping[str, Any], requested: Mapping[str, Any]) -> bool:
    """Whether a run continues a checkpoint, given what both record of the config: more rounds may be asked for."""
    before, after = recorded["config"], requested["config"]
    return {**recorded, "config": {**before, "rounds": max(before["rounds"], after["rounds"])}} == requested


def _find_extension_faults(recorded: Mapping[str, Any], target: Mapping[str, Any]) -> list[str] | None:
    """Find what in a run with more rounds would have been different from its first round on.

    Returns:
        A sentence for each fault, [] if the run can continue; None where the runs differ in more.
    """
    before, after = recorded["rounds"], target["rounds"]
    faults = []
    for line in describe_differences({**recorded, "rounds": after}, target):
        key, _, values = line.partition(": ")
        if not key.endswith(".rounds") or values != f"{before} / {after}":
            return None
        faults.append(f"{key} follows the number of rounds: set --{key}={before}.")
    if target.get("asynchronous"):
        faults.append("In asynchronous rounds, the size of the server's history follows the number of rounds.")
    for where, name in (("privacy", "epsilon"), ("record_privacy", "target_epsilon")):
        if target.get(where, {}).get(name) is not None:
            faults.append(f"The noise keeps config.{where}.{name} for the first number of rounds alone.")
    if target.get("diagnostics") and before % target["diagnose_every"] == 0:
        faults.append(f"No diagnostics were computed after its last round: a multiple of {target['diagnose_every']}.")
    return faults


def _resolve_auto_from(settings: dict[str, Any], before: Mapping[str, Any], partition: Any) -> dict[str, Any]:
    """Replace "auto" in the settings by the values of the directory's own config and partition."""
    data, data_before = settings.get("data", {}), before.get("data", {})
    if data.get("client_test_fraction") == AUTO and "client_test_fraction" in data_before:
        fraction = data_before["client_test_fraction"]
        if partition:
            fractions = partition["fractions"]
            fraction = default_client_test_fraction(fractions["client_test"] is None or fractions["test"] != 0)
        settings = settings | {"data": data | {"client_test_fraction": fraction}}
    if settings.get("personal_on_test") == AUTO and "personal_on_test" in before:
        settings = settings | {"personal_on_test": before["personal_on_test"]}
    stages = settings.get("uplink", ())
    if "privacy" in settings and len(stages) == len(before.get("uplink", ())):
        found = [stage.get("noise_multiplier") for stage in before["uplink"]]
        named = [("noise_multiplier" in stage and stage["noise_multiplier"] is None) for stage in stages]
        stages = [
            stage | {"noise_multiplier": z} if is_open else stage
            for stage, z, is_open in zip(stages, found, named, strict=True)
        ]
        settings = settings | {"uplink": stages}
    mechanism, known = settings.get("record_privacy"), before.get("record_privacy", {}).get("noise_multiplier")
    if mechanism and mechanism["noise_multiplier"] is None:
        settings = settings | {"record_privacy": mechanism | {"noise_multiplier": known}}
    return settings


def describe_differences(recorded: Any, requested: Any, key: str = "config") -> Iterator[str]:
    """Yield a line "key: there / here" for every leaf in which two tables differ."""
    if isinstance(recorded, dict) and isinstance(requested, dict):
        for name in recorded | requested:
            yield from describe_differences(recorded.get(name, "unset"), requested.get(name, "unset"), f"{key}.{name}")
    elif recorded != requested:
        yield f"{key}: {recorded} / {requested}"
