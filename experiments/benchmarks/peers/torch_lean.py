"""PyTorch optimized for speed: examples by index, channels last, one model for all clients, updates by foreach."""

from collections.abc import Iterable

import torch
from torch import Tensor

from ..workloads import Workload
from . import Contender, ContenderSettings
from .torch_network import (
    averaged_tensors,
    build_network,
    from_torch,
    make_tensors,
    mean_loss,
    read_facts,
    select_device,
    synchronize,
    trained_parameters,
)


class Loop:
    """Clients one after another on one model; the trained models are summed."""

    def __init__(self, work: Workload, device: torch.device | str = "cpu"):
        self.work, self.data = work, make_tensors(work, device)
        self.model = build_network(work).to(device, memory_format=torch.channels_last)  # pyrefly: ignore[no-matching-overload]
        self.parameters, self.averaged = trained_parameters(self.model), averaged_tensors(self.model)
        self.server = [tensor.detach().clone() for tensor in self.averaged]
        self.total = [torch.zeros_like(tensor) for tensor in self.averaged]

    def train(self, clients: Iterable[int]) -> None:
        """Leaves the sum of the clients' models, each trained from `server`, in `total`."""
        with torch.no_grad():
            torch._foreach_zero_(self.total)
        for client in clients:
            self.add_one(self.data.clients[client])

    def add_one(self, positions: Tensor) -> None:
        """Train the model from `server` on these examples, and add it to `total`."""
        with torch.no_grad():
            torch._foreach_copy_(self.averaged, self.server)
        self._train_one(positions)
        with torch.no_grad():
            torch._foreach_add_(self.total, self.averaged)

    def _train_one(self, positions: Tensor) -> None:
        inputs, labels = self.data.inputs[positions], self.data.labels[positions]
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        size = self.work.batch_size
        for x, y in zip(inputs.split(size), labels.split(size), strict=True):
            gradients = torch.autograd.grad(mean_loss(self.model(x), y), self.parameters)
            with torch.no_grad():
                torch._foreach_add_(self.parameters, gradients, alpha=-self.work.learning_rate)


def prepare(work: Workload, settings: ContenderSettings) -> Contender:
    chosen = select_device(settings)
    return make_contender(Loop(work, chosen), chosen)


def make_contender(loop: Loop, device: torch.device) -> Contender:
    work = loop.work

    def round() -> None:
        loop.train(range(work.num_clients))
        torch._foreach_copy_(loop.server, torch._foreach_div(loop.total, work.num_clients))
        synchronize(device)

    return Contender(round, lambda: from_torch(work, loop.server), facts=lambda: read_facts(device))
