"""The lean loop in one process per core, each with one thread: clients are dealt out, models meet in shared memory."""

import torch
from torch import Tensor, multiprocessing
from torch.multiprocessing import Queue

from ..workloads import Workload
from . import Contender, ContenderSettings
from .torch_lean import Loop
from .torch_network import averaged_tensors, build_network, from_torch


def prepare(work: Workload, settings: ContenderSettings) -> Contender:
    context = multiprocessing.get_context("spawn")
    server = _share_tensors(work)
    totals = [_share_tensors(work) for _ in range(settings.cores)]
    orders = [context.SimpleQueue() for _ in range(settings.cores)]
    done = context.SimpleQueue()
    for i, (total, order) in enumerate(zip(totals, orders, strict=True)):
        clients = range(i, work.num_clients, settings.cores)
        context.Process(target=_serve, args=(work, clients, server, total, order, done), daemon=True).start()
    for _ in orders:
        done.get()

    def round() -> None:
        for order in orders:
            order.put(True)
        for _ in orders:
            done.get()
        for first, *others in zip(server, *totals, strict=True):
            first.copy_(sum(others) / work.num_clients)

    def close() -> None:
        for order in orders:
            order.put(False)

    return Contender(round, lambda: from_torch(work, server), close)


def _share_tensors(work: Workload) -> list[Tensor]:
    return [tensor.detach().share_memory_() for tensor in averaged_tensors(build_network(work))]


def _serve(
    work: Workload, clients: range, server: list[Tensor], total: list[Tensor], orders: Queue, done: Queue
) -> None:
    """Train these clients from `server` into `total` for every order."""
    torch.set_num_threads(1)
    loop = Loop(work)
    done.put(True)
    while orders.get():
        torch._foreach_copy_(loop.server, server)
        loop.train(clients)
        torch._foreach_copy_(total, loop.total)
        done.put(True)
