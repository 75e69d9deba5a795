"""How the processes of a run find one another: flags, JAX's runtime, and last words where they do not or no longer."""

import argparse
import ctypes
import os
import signal
import socket
import time
from typing import NamedTuple

import jax
from jax._src.distributed import global_state

from fedjax_het.errors import InputError

from .collectives import ALONE, RESUMES, Processes


class DistributedConfig(NamedTuple):
    """Where, as whom and how many; all of it found by JAX if is_detected."""

    coordinator: str | None = None  # HOST:PORT; process 0 opens the port
    num_processes: int | None = None
    process_id: int | None = None
    is_detected: bool = False
    initialization_timeout: int = 120  # seconds for all to come
    heartbeat_timeout: int = 30  # seconds without a sign of life after which one is lost

    @property
    def is_alone(self) -> bool:
        return not self.is_detected and self.num_processes in (None, 1)


def add_flags(parser: argparse.ArgumentParser) -> None:
    usual = DistributedConfig()
    group = parser.add_argument_group(
        "several processes", "the same command on every host, or for every GPU; the run directory is one that all share"
    )
    group.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 can be reached; any free port of it")
    group.add_argument("--num_processes", type=int, metavar="N")
    group.add_argument("--process_id", type=int, metavar="I", help="0 to N - 1")
    group.add_argument(
        "--distributed", action="store_true", help="let JAX find all that: SLURM, Open MPI, Kubernetes, Cloud TPU"
    )
    for name, meaning in (
        ("initialization_timeout", "give up if not all are there after so long"),
        ("heartbeat_timeout", "take one for lost after so long without a sign of life"),
    ):
        text = f"{meaning} (default {getattr(usual, name)})"
        group.add_argument(f"--{name}", type=int, metavar="SECONDS", default=getattr(usual, name), help=text)


def read_flags(known: argparse.Namespace) -> DistributedConfig:
    """Raises InputError for flags that do not go together."""
    meeting = DistributedConfig(
        known.coordinator,
        known.num_processes,
        known.process_id,
        known.distributed,
        known.initialization_timeout,
        known.heartbeat_timeout,
    )
    three = {f"--{name}": getattr(meeting, name) for name in ("coordinator", "num_processes", "process_id")}
    given = [name for name, value in three.items() if value is not None]
    if meeting.is_detected and given:
        raise InputError(f"--distributed finds out by itself what {given[0]} says. Leave one of the two out.")
    if given and len(given) < len(three):
        missing = " and ".join(name for name in three if name not in given)
        raise InputError(f"{given[0]} comes with {missing}. Give all three, or --distributed alone.")
    if given:
        _check_numbers(meeting)
    for name in ("initialization_timeout", "heartbeat_timeout"):
        if getattr(meeting, name) < 5:
            raise InputError(f"--{name}: at least 5 seconds, not {getattr(meeting, name)}.")
    return meeting


def _check_numbers(meeting: DistributedConfig) -> None:
    if meeting.num_processes < 1:
        raise InputError(f"--num_processes: at least 1, not {meeting.num_processes}.")
    if not 0 <= meeting.process_id < meeting.num_processes:
        raise InputError(
            f"--process_id: 0 to {meeting.num_processes - 1} with --num_processes={meeting.num_processes}, "
            f"not {meeting.process_id}."
        )
    host, _, port = meeting.coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--coordinator: HOST:PORT with a port of 1 to 65535, not '{meeting.coordinator}'.")


def initialize(meeting: DistributedConfig) -> Processes:
    """Wait until all are there. To be called before JAX looks at its devices.

    Raises InputError where process 0 cannot open its port or cannot be reached, and where JAX detects nothing. Where
    somebody does not come, JAX aborts the process; it ends with status 2 then, as for an InputError.
    """
    if meeting.is_alone:
        return ALONE
    if not meeting.is_detected:
        _check_address(meeting)
    jax.config.update("jax_enable_preemption_service", False)  # with it, SIGTERM would end nobody
    _set_abort_message(
        2,
        f"error: not all processes came together within {meeting.initialization_timeout} s, or one came twice or too "
        "many: JAX says more above. Start as many as --num_processes says, each with a --process_id of its own from 0.",
    )
    timeouts = {
        "initialization_timeout": meeting.initialization_timeout,
        "heartbeat_timeout_seconds": meeting.heartbeat_timeout,
    }
    if meeting.is_detected:
        _detect(timeouts)
    else:
        jax.distributed.initialize(*meeting[:3], cluster_detection_method="deactivate", **timeouts)
    processes = Processes(global_state.process_id, global_state.num_processes, meeting.heartbeat_timeout)
    lost = f"error: {processes} ends, for another is lost; JAX says above which (the leader is process 0); {RESUMES}"
    _set_abort_message(1, lost)
    return processes


def _detect(timeouts: dict[str, int]) -> None:
    try:
        jax.distributed.initialize(**timeouts)
    except (ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or ["?"])[0]
        raise InputError(
            f"--distributed: JAX finds no job to join ({reason}). It knows SLURM, Open MPI, Kubernetes and Cloud TPU; "
            "elsewhere give --coordinator, --num_processes and --process_id."
        ) from error


def _check_address(meeting: DistributedConfig) -> None:
    """JAX would crash where a port is taken, and would wait in silence where nobody answers."""
    host, _, port = meeting.coordinator.rpartition(":")
    print(f"process {meeting.process_id} of {meeting.num_processes}: to meet at {meeting.coordinator}", flush=True)
    if meeting.process_id == 0:
        try:
            socket.create_server(("", int(port))).close()
        except OSError as error:
            raise InputError(f"--coordinator: port {port} of this host is taken ({error}). Give another.") from error
        return
    until = time.monotonic() + meeting.initialization_timeout
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise InputError(
                    f"--coordinator: nobody answered at {meeting.coordinator} within "
                    f"{meeting.initialization_timeout} s ({error}). Is process 0 started there, and does it let this "
                    "host through?"
                ) from error
        time.sleep(0.2)


def _set_abort_message(status: int, text: str) -> None:
    """What to say when JAX aborts: in a thread of its own, where Python's signal handlers are never called."""

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def speak(_: int) -> None:
        os.write(2, f"{text}\n".encode())
        os._exit(status)

    _spoken[:] = [speak]
    ctypes.CDLL(None).signal(signal.SIGABRT, speak)


_spoken: list[object] = []  # C knows the function by its address alone
