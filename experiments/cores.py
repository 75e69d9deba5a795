"""The processor cores that this process may use, and JAX's view of them."""

import os
from contextlib import suppress

import jax


def count() -> int:
    """Cores that this process is allowed on, where the system tells, else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def show_as_devices(number: int) -> None:
    """A CPU shows itself as so many devices; that can be settled only before JAX has looked at its devices."""
    with suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", number)
