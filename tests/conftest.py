"""Tests see several CPU devices, so that sharded layouts are real; `tests` is importable from anywhere."""

import sys
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.compilation import hasten

hasten()
jax.config.update("jax_num_cpu_devices", 4)

MAPPINGS = Path("/proc/self/maps")
MOST_MAPPINGS = 30_000  # Linux allows 65,530 a process, and a program that needs one more crashes in the compiler


def pytest_runtest_teardown(item, nextitem):
    """Compiled programs live as long as the process: let go of them before their memory mappings run out."""
    if MAPPINGS.exists() and len(MAPPINGS.read_bytes().splitlines()) > MOST_MAPPINGS:
        jax.clear_caches()
