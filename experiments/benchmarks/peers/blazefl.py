"""BlazeFL's threads, one per core, with the lean loop in each: models are passed in memory, without copies.

Threads train side by side only in a free-threaded Python.
"""

import sys
import threading
from queue import SimpleQueue

import torch
from blazefl.core import ThreadPoolClientTrainer
from torch import Tensor

from ..workloads import Workload
from . import Contender, ContenderSettings, UnusableError
from .torch_lean import Loop
from .torch_network import from_torch


class _Trainer(ThreadPoolClientTrainer[list[Tensor], list[Tensor]]):
    """Clients are trained from the payload, and the trained models are collected in `cache`."""

    def __init__(self, work: Workload, cores: int):
        self.num_parallels, self.device, self.device_count = cores, "cpu", 0
        self.cache: list[list[Tensor]] = []
        self.stop_event = threading.Event()
        self._free: SimpleQueue[Loop] = SimpleQueue()
        for _ in range(cores):
            self._free.put(Loop(work))

    def worker(self, cid: int, device: str, payload: list[Tensor], stop_event: threading.Event) -> list[Tensor]:
        torch.set_num_threads(1)  # of this thread, which lives for one round
        loop = self._free.get()
        loop.server = payload
        loop.train([cid])
        trained = [tensor.clone() for tensor in loop.total]
        self._free.put(loop)
        return trained

    def uplink_package(self) -> list[list[Tensor]]:
        packages, self.cache = self.cache, []
        return packages


def prepare(work: Workload, settings: ContenderSettings) -> Contender:
    if sys._is_gil_enabled():  # pyrefly: ignore[missing-attribute]: since Python 3.13
        raise UnusableError("its threads need a free-threaded Python, and --python=blazefl=... to name it")
    torch.set_num_threads(1)
    server, trainer = Loop(work).server, _Trainer(work, settings.cores)

    def round() -> None:
        trainer.local_process(server, list(range(work.num_clients)))
        for old, *new in zip(server, *trainer.uplink_package(), strict=True):
            old.copy_(sum(new) / work.num_clients)

    return Contender(round, lambda: from_torch(work, server))
