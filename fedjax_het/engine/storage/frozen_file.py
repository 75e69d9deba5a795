"""The file of frozen leaves, which is written once and shared by all checkpoints of a run."""

from pathlib import Path

import jax
import numpy as np
import safetensors.flax

from fedjax_het import tree
from fedjax_het._internal import atomic
from fedjax_het.engine.storage.checksums import crc32_of
from fedjax_het.types import Variables

_NAME = "frozen.safetensors"


class FrozenFile:
    """A file of frozen leaves in the directory of the checkpoints."""

    def __init__(self, directory: Path):
        self._path = directory / _NAME
        self._checksum: int | None = None

    def write(self, leaves: Variables) -> dict[str, int]:
        """Write the leaves at the first call, and wait until they are on disk.

        Returns:
            {"frozen": the checksum for `read`}; {} without leaves.
        """
        if not jax.tree.leaves(leaves):
            return {}
        if self._checksum is None:
            if jax.process_index() == 0:
                on_host = {path: jax.device_get(leaf) for path, leaf in tree.leaves_by_path(leaves).items()}
                atomic.write(self._path, lambda temporary: safetensors.flax.save_file(on_host, temporary))
            self._checksum = crc32_of(self._path) if jax.process_index() == 0 else 0
        return {"frozen": self._checksum}

    def read(self, checksum: int, like: Variables) -> Variables:
        """Read the leaves, with the shardings of `like`.

        Raises:
            OSError: The file is missing or damaged.
        """
        if damage := self.find_damage(checksum):
            raise OSError(damage)
        self._checksum = checksum
        leaves = safetensors.flax.load_file(self._path)
        return jax.tree.map(
            lambda x, given: jax.device_put(np.asarray(x), given.sharding), tree.from_paths(leaves), like
        )

    def find_damage(self, checksum: int | None) -> str | None:
        """A description of the damage; None if the file is intact, or if no file is expected."""
        if checksum is None:
            return None
        if not self._path.is_file():
            return f"{_NAME} is missing"
        return None if crc32_of(self._path) == checksum else f"the checksum of {_NAME} does not match"
