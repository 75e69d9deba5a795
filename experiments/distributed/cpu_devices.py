"""The processor cores that this process may use, and JAX's view of them."""

import os
import socket
from contextlib import suppress

import jax

from .collectives import Processes

MOST = 1024  # devices that one process makes of its cores; each takes memory, and time to begin
PATIENCE, A_MONTH = "--xla_cpu_collective_call_terminate_timeout_seconds", 30 * 24 * 3600


def allowed_cores() -> list[int]:
    """Cores that this process is allowed on, where the system tells, else all."""
    return sorted(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def count_cores() -> int:
    return len(allowed_cores())


def cores_per_process(processes: Processes) -> int:
    """Cores for each process, where those of one host that are allowed on the same cores divide them.

    It is the least of all processes' shares, for all need equally many devices.
    """
    places = processes.all_gather("cores", [socket.gethostname(), allowed_cores()])
    return max(1, min(len(cores) // places.count([host, cores]) for host, cores in places))


def set_num_cpu_devices(number: int) -> None:
    """A CPU shows itself as so many devices; that can be settled only before JAX has looked at its devices.

    They wait for each other as long as it takes: left alone, XLA ends the process after a minute.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if PATIENCE not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {PATIENCE}={A_MONTH}".strip()
    with suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", number)
