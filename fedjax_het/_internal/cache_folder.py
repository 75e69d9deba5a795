"""The folder of files that can be made again: compiled kernels, compiled programs, decoded data."""

import functools
import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """The folder fedjax_het in XDG_CACHE_HOME, or in ~/.cache without that variable.

    A user without a home, as in a container without an account, has a folder that is removed when the process ends.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedjax_het"
    except RuntimeError:  # Path.home finds no home
        return temporary_folder()


def temporary_folder() -> Path:
    """A folder of this process alone, which is removed when it ends."""
    return Path(_make_temporary_folder().name)


@functools.cache
def _make_temporary_folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="fedjax_het-")
