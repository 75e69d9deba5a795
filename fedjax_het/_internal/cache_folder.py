"""The folder of files that can be made again: compiled kernels, compiled programs, decoded data."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder fedjax_het in XDG_CACHE_HOME, or in ~/.cache without that variable."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedjax_het"
