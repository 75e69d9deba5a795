"""The memory of this machine."""

import os
from contextlib import suppress
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container


def physical_memory() -> int:
    """Bytes of physical memory, or of the part that this container may use."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _LIMITS:
        with suppress(OSError, ValueError):  # "max" means no limit
            sizes.append(int(Path(path).read_text()))
    return min(sizes)


def host_memory() -> int:
    """Bytes of memory and swap together, the limit of what can be allocated."""
    swap = 0
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        swap = 1024 * next((int(line.split()[1]) for line in lines if line.startswith("SwapTotal:")), 0)
    return physical_memory() + swap


def describe_bytes(size: float) -> str:
    """Format a number of bytes for messages: "25.3 GB"."""
    return f"{size / 1e9:,.1f} GB"
