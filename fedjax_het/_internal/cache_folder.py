"""Where things live that can be made again: compiled kernels, compiled programs."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """XDG_CACHE_HOME, else ~/.cache, and our own folder in it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedjax_het"
