"""The processor cores that this process may use, and the number of CPU devices that JAX makes of them."""

import os
import socket
from contextlib import suppress

import jax

from .collectives import Processes

MAX_DEVICES = 1024  # of one process; each takes memory and time to start
_TIMEOUT_FLAG, _MONTH = "--xla_cpu_collective_call_terminate_timeout_seconds", 30 * 24 * 3600


def allowed_cores() -> list[int]:
    """List the cores that this process is allowed to use, or all where the system does not tell."""
    return sorted(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def count_cores() -> int:
    return len(allowed_cores())


def cores_per_process(processes: Processes) -> int:
    """Count the cores for each process, if the processes of one host with the same allowed cores share them.

    It is the smallest share of all processes, because all need the same number of devices.
    """
    places = processes.all_gather("cores", [socket.gethostname(), allowed_cores()])
    return max(1, min(len(cores) // places.count([host, cores]) for host, cores in places))


def set_num_cpu_devices(number: int) -> None:
    """Make JAX see so many CPU devices; this has an effect only before JAX initializes its devices.

    XLA's timeout of collectives is raised from a minute, after which it would end the process, to a month.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _TIMEOUT_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_TIMEOUT_FLAG}={_MONTH}".strip()
    with suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", number)
