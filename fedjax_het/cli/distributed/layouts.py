"""Layouts, and the number of CPU devices that JAX makes of the processor cores that this process may use."""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress

import jax

from fedjax_het import engine
from fedjax_het.cli.distributed.collectives import SINGLE, Processes
from fedjax_het.cli.runs.setting_text import parse_layout
from fedjax_het.errors import InputError

MAX_DEVICES = 1024  # of one process; each takes memory and time to start
_TIMEOUT_FLAG, _MONTH = "--xla_cpu_collective_call_terminate_timeout_seconds", 30 * 24 * 3600


def allowed_cores() -> list[int]:
    """List the cores that this process is allowed to use, or all where the system does not tell."""
    return sorted(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def count_cores() -> int:
    return len(allowed_cores())


def share_cores(num_shares: int) -> list[list[int]]:
    """Divide the allowed cores into equal shares."""
    cores = allowed_cores()
    return [cores[i::num_shares] for i in range(num_shares)]


def restrict_to_cores(cores: Sequence[int]) -> None:
    """Restrict this process to some cores, where the system can, before JAX initializes its devices."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def cores_per_process(processes: Processes) -> int:
    """Count the cores for each process, if the processes of one host with the same allowed cores share them.

    It is the smallest share of all processes, because all need the same number of devices.
    """
    places = processes.all_gather("cores", [socket.gethostname(), allowed_cores()])
    return max(1, min(len(cores) // places.count([host, cores]) for host, cores in places))


def set_num_cpu_devices(number: int) -> None:
    """Make JAX use this number of CPU devices; it has an effect only before JAX initializes its devices.

    XLA's timeout of collectives, which ends the process, is raised from a minute to a month.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _TIMEOUT_FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_TIMEOUT_FLAG}={_MONTH}".strip()
    with suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", number)


def read_layout(text: str, processes: Processes = SINGLE) -> engine.Layout | str:
    """Read a layout, "sharded(2, 4)", or "auto", which is returned as it is.

    Raises:
        InputError: There are too few devices, or several processes would not share the work.
    """
    name, numbers = parse_layout(text)
    if name == "auto":
        set_num_cpu_devices(cores_per_process(processes))
        return name
    if name == "sharded":
        count = numbers[0]
        set_num_cpu_devices(min(MAX_DEVICES, max(1, count // processes.count)))
        if count > jax.device_count():
            owner = "this process has" if processes.count == 1 else f"{processes.count} processes have"
            raise InputError(
                f"config.layout: sharded({count}) needs {count} devices, but {owner} {jax.device_count()}."
                " Shard over fewer, or use chunked(n)."
            )
    elif processes.count > 1:
        raise InputError(
            f"config.layout: {text} is for one device, and {processes.count} processes have more. Write auto, or "
            "sharded(n) with as many devices as they have together."
        )
    if name == "vmapped":
        return engine.vmapped
    try:
        return getattr(engine, name)(*numbers)
    except ValueError as error:
        raise InputError(f"config.layout: {error}") from error
