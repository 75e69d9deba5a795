"""Checkpoints of the full state of a run, written atomically through Orbax."""

import errno
import json
import logging
import operator
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.regular_files import read_regular
from fedjax_het.engine.storage.checksums import find_damage, write_checksums
from fedjax_het.engine.storage.client_store import ClientStore
from fedjax_het.engine.storage.frozen_file import FrozenFile
from fedjax_het.engine.storage.incremental import IncrementalCheckpoint
from fedjax_het.errors import InputError
from fedjax_het.types import ClientState, State, Variables

FORMAT = 4  # 1: before the counters of a state were renamed; 2: before the server had a history, 3: frozen leaves
_MARGIN = 1 << 17  # bytes that Orbax writes in addition to the arrays of a small state
_DELETED = "deleted"  # checkpoints are moved here before deletion, so a killed run leaves no partial checkpoint


class SavedCheckpoint(NamedTuple):
    """A checkpoint on disk."""

    round: int
    about: dict[str, Any]  # format, identity, leaves; {} if damaged
    damage: str | None = None  # a description of the damage


def inspect_checkpoints(directory: Path, is_thorough: bool = True) -> list[SavedCheckpoint]:
    """List the checkpoints in a directory, without writing files or using devices.

    Args:
        directory: The directory of `Checkpoints`. Entries whose names are not numbers are skipped.
        is_thorough: Whether to verify the checksums of all files.

    Returns:
        All checkpoints, including damaged ones, oldest first.
    """
    names = [folder.name for folder in directory.iterdir()] if directory.is_dir() else []
    rounds = sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)
    return [_inspect(directory, round, is_thorough) for round in rounds]


def _inspect(directory: Path, round: int, is_thorough: bool) -> SavedCheckpoint:
    folder = directory / str(round)
    if not folder.is_dir():
        return SavedCheckpoint(round, {}, "it is not a folder")
    if missing := next((name for name in ("state", "about") if not (folder / name).is_dir()), None):
        return SavedCheckpoint(round, {}, f"'{missing}' is missing")
    try:
        about = json.loads(read_regular(folder / "about" / "metadata"))
        stored_round = about.get("round", round)
        if not {"format", "identity", "leaves"} <= about.keys():
            return SavedCheckpoint(round, {}, "'about' has unexpected contents")
    except (OSError, ValueError, AttributeError) as error:
        return SavedCheckpoint(round, {}, f"'about' cannot be read ({error})")
    if stored_round != round:
        return SavedCheckpoint(round, {}, f"it is the checkpoint of round {stored_round} under another name")
    damage = find_damage(folder) if is_thorough else None
    damage = damage or IncrementalCheckpoint(directory / "clients").find_damage(about.get("segments", []), is_thorough)
    damage = damage or (FrozenFile(directory).find_damage(about.get("frozen")) if is_thorough else None)
    return SavedCheckpoint(round, {} if damage else about, damage)


class Checkpoints:
    """A directory of checkpoints, named by the number of completed rounds.

    Multiple processes share the directory, and all of them must save and restore.
    """

    def __init__(
        self,
        directory: str | Path,
        identity: Any = None,
        *,
        num_clients: int | None = None,
        keep: int = 2,
        continues: Callable[[Any, Any], bool] = operator.eq,
    ):
        """Open the directory, creating it if needed.

        Args:
            directory: The directory.
            identity: A JSON value stored in checkpoints, such as the resolved config.
            num_clients: The number of clients. Further rows of the client states are padding, whose number depends on
                the devices, and are ignored.
            keep: The number of newest checkpoints to keep.
            continues: (identity of a checkpoint, `identity`) -> whether the run may continue the checkpoint (default:
                they must be equal).

        Raises:
            InputError: The directory cannot be created or written.
        """
        self._directory, self._num_clients = Path(directory).absolute(), num_clients
        self._identity, self._continues = json.loads(json.dumps(identity)), continues
        self._segments = IncrementalCheckpoint(self._directory / "clients")
        self._frozen_file = FrozenFile(self._directory)
        import orbax.checkpoint as ocp  # takes half a second to import

        self._args = ocp.args
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, enable_async_checkpointing=False, todelete_subdir=_DELETED
        )
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._empty_deleted()
            self._manager = ocp.CheckpointManager(self._directory, options=options)
        except OSError as error:
            raise InputError(f"{directory}: checkpoints cannot be written there ({error.strerror}).") from error

    def save(self, round: int, state: State) -> None:
        """Write a checkpoint, and wait until it is on disk. For a ClientStore, only changes are written.

        Args:
            round: The number of completed rounds.
            state: The state after these rounds.

        Raises:
            OSError: There is not enough disk space.
        """
        about = {"format": FORMAT, "round": round, "identity": self._identity}
        about["leaves"] = _leaves(state, self._num_clients)
        state, store, frozen = _split(state)
        about |= {"num_rows": _num_rows(state)} if store is None else {"segments": self._segments.write(round, store)}
        if shutil.disk_usage(self._directory).free < _MARGIN + sum(x.nbytes for x in jax.tree.leaves(state)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._directory))
        about |= self._frozen_file.write(frozen)
        saved = self._args.StandardSave(_fill_empty_leaves(state))
        with _without_logged_errors():
            self._manager.save(round, args=self._args.Composite(state=saved, about=self._args.JsonSave(about)))
            self._manager.wait_until_finished()
        if jax.process_index() == 0:
            write_checksums(self._directory / str(round))
        self._empty_deleted()
        if store is not None:
            self._segments.prune(name for kept in self._manager.all_steps() for name in self._about(kept)["segments"])

    def latest(self) -> int | None:
        """The number of completed rounds of the newest checkpoint; None if there is none."""
        return self._manager.latest_step()

    def restore(self, like: State, round: int | None = None) -> State:
        """Read a checkpoint.

        Args:
            like: A state with the structure and the sharding of the result; its ClientStore, if any, is overwritten.
            round: The number of completed rounds (default None, the newest checkpoint).

        Returns:
            The state.

        Raises:
            InputError: There is no checkpoint, it is damaged, or it was written by another version, run or algorithm.
        """
        round = self.latest() if round is None else round
        if round is None:
            raise InputError(f"{self._directory}: there is no checkpoint.")
        where, about = self._directory / str(round), self._about(round)
        if about["format"] != FORMAT:
            newer, older = ("a newer", "Upgrade fedjax-het"), ("an older", "Continue it with that version")
            version, remedy = newer if about["format"] > FORMAT else older
            raise InputError(
                f"{where}: written by {version} version (format {about['format']}, this one reads {FORMAT}). "
                f"{remedy}, or train into another directory."
            )
        if not self._continues(about["identity"], self._identity):
            raise InputError(
                f"{where}: the checkpoint belongs to another run. Use the settings of that run, or another directory."
            )
        _check_leaves(where, about["leaves"], _leaves(like, self._num_clients))
        with _reporting_damage(where):
            if damage := find_damage(where):
                raise OSError(damage)
        like, store, frozen = _split(like)
        if ("segments" in about) != (store is not None):
            saved = "on" if store is not None else "off"
            raise InputError(f"{where}: this run was saved with client states {saved} the device. Set client_states.")
        target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), _fill_empty_leaves(like)
        )
        # In non-strict mode Orbax drops or adds padding rows; `_check_leaves` has compared everything else.
        is_alike = store is not None or about.get("num_rows", _num_rows(like)) == _num_rows(like)
        state = self._read(where, "state", self._args.StandardRestore(target, strict=is_alike))
        state = jax.tree.map(lambda read, given: read if given.size else given, state, like)
        if "frozen" in about:
            with _reporting_damage(where):
                frozen = self._frozen_file.read(about["frozen"], frozen)
        state = state._replace(server=state.server._replace(frozen=frozen))
        if store is None:
            return state
        with _reporting_damage(where):
            self._segments.read(about["segments"], store)
        return state._replace(clients=store)

    def rewind(self, round: int) -> None:
        """Delete all newer checkpoints."""
        for step in [step for step in self._manager.all_steps() if step > round]:
            self._manager.delete(step)
        self._empty_deleted()

    def _empty_deleted(self) -> None:
        """Delete checkpoints that were moved for deletion, including those of killed runs."""
        if jax.process_index() == 0:
            shutil.rmtree(self._directory / _DELETED, ignore_errors=True)

    def close(self) -> None:
        self._manager.close()

    def _about(self, round: int) -> dict[str, Any]:
        return self._read(self._directory / str(round), "about", self._args.JsonRestore())

    def _read(self, where: Path, item: str, arguments: Any) -> Any:
        with _reporting_damage(where):
            return self._manager.restore(int(where.name), args=self._args.Composite(**{item: arguments}))[item]


@contextmanager
def _without_logged_errors() -> Iterator[None]:
    """Drop the tracebacks that Orbax's threads log before it raises their errors."""
    logger = logging.getLogger("absl")

    def has_no_traceback(record: logging.LogRecord) -> bool:
        return not record.exc_info

    logger.addFilter(has_no_traceback)
    try:
        yield
    finally:
        logger.removeFilter(has_no_traceback)


@contextmanager
def _reporting_damage(where: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Orbax and TensorStore raise various exceptions for damaged files
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"{where}: the checkpoint cannot be read ({reason[:200]}). Delete that folder to resume from the previous "
            "one, or delete the run directory to start again."
        ) from error


def _split(state: State[ClientState | ClientStore]) -> tuple[State, ClientStore | None, Variables]:
    """Split a state into (the part that Orbax writes, the store if there is one, the frozen leaves)."""
    frozen, state = state.server.frozen, state._replace(server=state.server._replace(frozen={}))
    if isinstance(state.clients, ClientStore):
        return State(state.server, {}, state.counters), state.clients, frozen
    return state, None, frozen


def _fill_empty_leaves(state: State) -> State:
    """Replace empty leaves, which Orbax does not support, by a single zero."""
    replicated = state.server.round.sharding
    return jax.tree.map(lambda x: x if x.size else jnp.zeros(1, x.dtype, device=replicated), state)


def _num_rows(state: State) -> int:
    return state.clients.rounds.shape[1]


def _leaves(state: State, num_clients: int | None) -> dict[str, str]:
    """`tree.describe_leaves` without padding rows."""
    clients = state.clients.shapes if isinstance(state.clients, ClientStore) else state.clients
    clients = jax.eval_shape(lambda clients: jax.tree.map(lambda x: x[:, :num_clients], clients), clients)
    return tree.describe_leaves(state._replace(clients=clients))


def _check_leaves(where: Path, stored: dict[str, str], expected: dict[str, str]) -> None:
    for name in sorted(stored.keys() | expected.keys()):
        found, wanted = stored.get(name, "absent"), expected.get(name, "absent")
        if found != wanted:
            raise InputError(
                f"{where}: the checkpoint belongs to another algorithm, model or number of clients: {name} is {found} "
                f"in the checkpoint and {wanted} in this run. Train into another directory."
            )
