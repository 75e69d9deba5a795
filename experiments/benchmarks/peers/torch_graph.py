"""The lean loop as a CUDA graph: a client's epoch is recorded once and replayed, so no launch waits for Python."""

from collections.abc import Iterable

import torch

from ..workloads import Workload
from . import Contender, ContenderSettings, UnusableError
from .torch_lean import Loop, make_contender
from .torch_network import select_device

_BEFORE = 3  # epochs in which memory is allocated and cuDNN chooses algorithms, which cannot be recorded


class GraphLoop(Loop):
    def __init__(self, work: Workload, device: torch.device):
        super().__init__(work, device)
        self._positions, self._graph = self.data.clients[0].clone(), torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_BEFORE):
                self.add_one(self._positions)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self._graph):
            self.add_one(self._positions)

    def train(self, clients: Iterable[int]) -> None:
        torch._foreach_zero_(self.total)
        for client in clients:
            self._positions.copy_(self.data.clients[client])
            self._graph.replay()


def prepare(work: Workload, settings: ContenderSettings) -> Contender:
    chosen = select_device(settings)
    if chosen.type != "cuda":
        raise UnusableError("CUDA graphs need a GPU")
    return make_contender(GraphLoop(work, chosen), chosen)
