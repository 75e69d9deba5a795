"""PyTorch's own vectorisation: torch.func.vmap of a client's step over clients, a chunk of them at a time."""

from functools import reduce

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from ..workloads import AdaptedWorkload, LayeredWorkload
from . import Contender, ContenderSettings
from .torch_network import build_network, from_torch, make_tensors, mean_loss, read_facts, select_device, synchronize

CHUNK = 100  # clients at a time; on a GPU all clients of dense layers alone, whose outputs need little memory


def prepare(work: LayeredWorkload | AdaptedWorkload, settings: ContenderSettings) -> Contender:
    chosen = select_device(settings)
    data, model = make_tensors(work, chosen), build_network(work).to(chosen)
    is_small = isinstance(work, LayeredWorkload) and not work.convolutions
    chunk = work.num_clients if is_small and chosen.type != "cpu" else CHUNK
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    server = {name: parameter.detach().clone() for name, parameter in trained.items()}

    def loss(parameters: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        return mean_loss(functional_call(model, parameters, (inputs,)), labels)

    gradients = vmap(grad(loss))

    def train_clients(clients: Tensor) -> dict[str, Tensor]:
        """Return the sum of the trained models of a chunk of clients [chunk, examples]."""
        parameters = {
            name: value.expand(len(clients), *value.shape).clone(memory_format=torch.contiguous_format)
            for name, value in server.items()
        }
        for positions in clients.split(work.batch_size, dim=1):
            step = gradients(parameters, data.inputs[positions], data.labels[positions])
            directions = [step[name] for name in parameters]
            torch._foreach_add_(list(parameters.values()), directions, alpha=-work.learning_rate)
        return {name: value.sum(dim=0) for name, value in parameters.items()}

    def round() -> None:
        sums = [train_clients(clients) for clients in data.clients.split(chunk)]
        for name, value in server.items():
            value.copy_(reduce(torch.add, (part[name] for part in sums)) / work.num_clients)
        synchronize(chosen)

    return Contender(round, lambda: from_torch(work, server.values()), facts=lambda: read_facts(chosen))
