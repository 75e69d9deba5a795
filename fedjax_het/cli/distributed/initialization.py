"""Initialization of several processes: flags, JAX's distributed runtime, and messages for its aborts."""

import argparse
import ctypes
import errno
import ipaddress
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax

from fedjax_het.cli.distributed.collectives import RESUME_HINT, SINGLE, Processes, global_state
from fedjax_het.errors import InputError


class DistributedConfig(NamedTuple):
    """The address of process 0, and the number and index of the processes; JAX finds all of them if is_detected."""

    coordinator: str | None = None  # HOST:PORT; process 0 opens the port
    num_processes: int | None = None
    process_id: int | None = None
    is_detected: bool = False
    initialization_timeout: int = 120  # seconds within which all processes have to start
    heartbeat_timeout: int = 30  # seconds without a heartbeat after which a process is lost

    @property
    def is_single(self) -> bool:
        return not self.is_detected and self.num_processes in (None, 1)


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "several processes", "the same command on every host, or for every GPU, with a run directory that all share"
    )
    group.add_argument("--coordinator", metavar="HOST:PORT", help="the address of process 0, with any free port")
    group.add_argument("--num_processes", type=int, metavar="N")
    group.add_argument("--process_id", type=int, metavar="I", help="0 to N - 1")
    about = "let JAX find all that: SLURM, Open MPI, Kubernetes, Cloud TPU"
    group.add_argument("--distributed", dest="is_detected", action="store_true", help=about)
    for name, about in {
        "initialization_timeout": "give up if not all processes have started after so long",
        "heartbeat_timeout": "consider a process lost after so long without a heartbeat",
    }.items():
        seconds = getattr(DistributedConfig(), name)
        group.add_argument(
            f"--{name}", type=int, metavar="SECONDS", default=seconds, help=f"{about} (default {seconds})"
        )


def read_flags(known: argparse.Namespace) -> DistributedConfig:
    """Read the flags of `add_flags`.

    Raises:
        InputError: The flags do not go together.
    """
    config = DistributedConfig(*(getattr(known, name) for name in DistributedConfig._fields))
    three = {f"--{name}": getattr(config, name) for name in ("coordinator", "num_processes", "process_id")}
    given = [name for name, value in three.items() if value is not None]
    if config.is_detected and given:
        raise InputError(f"--distributed detects the value of {given[0]}. Omit one of the two.")
    if given and len(given) < len(three):
        missing = " and ".join(name for name in three if name not in given)
        raise InputError(f"{given[0]} needs {missing}. Give all three, or --distributed alone.")
    if given:
        _check_numbers(known.coordinator, known.num_processes, known.process_id)
    for name in ("initialization_timeout", "heartbeat_timeout"):
        if getattr(config, name) < 5:
            raise InputError(f"--{name}: at least 5 seconds, not {getattr(config, name)}.")
    return config


def _check_numbers(coordinator: str, num_processes: int, process_id: int) -> None:
    if num_processes < 1:
        raise InputError(f"--num_processes: at least 1, not {num_processes}.")
    if not 0 <= process_id < num_processes:
        raise InputError(
            f"--process_id: 0 to {num_processes - 1} with --num_processes={num_processes}, not {process_id}."
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InputError(f"--coordinator: HOST:PORT with a port of 1 to 65535, not '{coordinator}'.")


def initialize(config: DistributedConfig) -> Processes:
    """Wait until all processes have started. To be called before JAX initializes its devices.

    If a process does not start, JAX aborts this one, which then exits with status 2 as for an InputError.

    Raises:
        InputError: Process 0 cannot open its port or cannot be reached, JAX detects no processes, or its version has
            no client for several processes where this package looks for it.
    """
    if config.is_single:
        return SINGLE
    if global_state is None:
        raise InputError(
            f"several processes are not supported with JAX {jax.__version__}. Start a single process, or install the "
            "version of JAX in constraints.txt."
        )
    if config.coordinator is not None:
        _check_address(config, config.coordinator)
    jax.config.update("jax_enable_preemption_service", False)  # with it, SIGTERM would not end the process
    _set_abort_message(
        2,
        f"error: not all processes started within {config.initialization_timeout} s, or one started twice or too many: "
        "see JAX's message above. Start --num_processes processes, with different --process_id from 0.",
    )
    initialize = partial(
        jax.distributed.initialize,
        initialization_timeout=config.initialization_timeout,
        heartbeat_timeout_seconds=config.heartbeat_timeout,
    )
    if config.coordinator is None:
        _detect(initialize)
    else:
        port, host = config.coordinator.rpartition(":")[2], _listening_host(config.coordinator) or "::"
        bind = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        initialize(*config[:3], cluster_detection_method="deactivate", coordinator_bind_address=bind)
    processes = Processes(global_state.process_id, global_state.num_processes, config.heartbeat_timeout)
    reason = "see JAX's message above (the leader is process 0)"
    _set_abort_message(1, f"error: {processes} ends because another process was lost; {reason}; {RESUME_HINT}")
    return processes


def _listening_host(coordinator: str) -> str:
    """The host of a numeric HOST:PORT, and of localhost; "" is all interfaces.

    A name is not resolved: many hosts know their own as a loopback address, which others cannot reach.
    """
    host = coordinator.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return ""


def _detect(initialize: Callable[[], None]) -> None:
    try:
        initialize()
    except (ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or ["?"])[0]
        raise InputError(
            f"--distributed: JAX finds no job to join ({reason}). It knows SLURM, Open MPI, Kubernetes and Cloud TPU; "
            "elsewhere give --coordinator, --num_processes and --process_id."
        ) from error


def _check_address(config: DistributedConfig, coordinator: str) -> None:
    """Raise InputError where JAX would crash because a port is taken, or wait silently because no one answers."""
    host, _, port = coordinator.rpartition(":")
    listening, action = _listening_host(coordinator), f"connecting to {coordinator}"
    if config.process_id == 0:
        action = f"listening on {listening or 'all interfaces'}, port {port}"
    print(f"process {config.process_id} of {config.num_processes}: {action}", flush=True)
    if config.process_id == 0:
        try:
            family = socket.AF_INET6 if ":" in listening else socket.AF_INET
            socket.create_server((listening, int(port)), family=family).close()
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise InputError(
                    f"--coordinator: {host} is not an address of this host, which has --process_id=0. Give an address "
                    "or the name of process 0's host."
                ) from error
            raise InputError(f"--coordinator: port {port} of this host is taken ({error}). Give another.") from error
        return
    deadline = time.monotonic() + config.initialization_timeout
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise InputError(
                    f"--coordinator: no answer from {coordinator} within "
                    f"{config.initialization_timeout} s ({error}). Is process 0 started there, and does its "
                    "firewall admit this host?"
                ) from error
        time.sleep(0.2)


def _set_abort_message(status: int, text: str) -> None:
    """Set the message for an abort by JAX, which happens in a thread where Python's signal handlers are not called."""

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def handle(_: int) -> None:
        os.write(2, f"{text}\n".encode())
        os._exit(status)

    _handlers[:] = [handle]
    ctypes.CDLL(None).signal(signal.SIGABRT, handle)


_handlers: list[object] = []  # a reference, because C knows the function only by its address
