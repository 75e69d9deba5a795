"""The workloads in PyTorch: the network, its weights to and from the workloads' layout, and the examples as tensors."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..workloads import Weights, Workload
from . import ContenderSettings, UnusableError


class Tensors(NamedTuple):
    inputs: Tensor  # [n, channel, height, width] float32, in 0..1; channels innermost in memory
    labels: Tensor  # [n] int64
    clients: Tensor  # [clients, examples] int64


def select_device(settings: ContenderSettings) -> torch.device:
    """Set up and return the GPU if there is one, else the CPU. Raises UnusableError for a precision without use."""
    torch.set_num_threads(settings.cores)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if settings.precision == "bfloat16":
        raise UnusableError("the loop is written for float32 and tf32")
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = settings.precision == "tf32"
    return torch.device("cuda")


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def read_facts(device: torch.device) -> dict[str, Any]:
    return {"peak_device_mb": torch.cuda.max_memory_allocated(device) / 1e6} if device.type == "cuda" else {}


def make_tensors(work: Workload, device: torch.device | str = "cpu") -> Tensors:
    examples = work.examples()
    inputs = torch.from_numpy(examples.inputs).to(device).float().div_(255).permute(0, 3, 1, 2)
    labels, clients = (torch.from_numpy(each).to(device).long() for each in (examples.labels, examples.clients))
    return Tensors(inputs, labels, clients)


def build_network(work: Workload) -> nn.Sequential:
    """Build the workload's layers with their initial weights; pooled before ReLU, which is the same and less to do."""
    modules, channels = [], work.shape[2]
    for layer in work.convolutions:
        convolution = nn.Conv2d(channels, layer.features, layer.kernel, padding=layer.padding.lower())
        modules += [convolution, nn.MaxPool2d(2), nn.ReLU()]
        channels = layer.features
    modules, size = [*modules, nn.Flatten()], int(np.prod(work.flattened))
    for units in work.units:
        modules += [nn.Linear(size, units), nn.ReLU()]
        size = units
    model = nn.Sequential(*modules[:-1])
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), to_torch(work, work.initial()), strict=True):
            parameter.copy_(value)
    return model


def to_torch(work: Workload, weights: Weights) -> list[Tensor]:
    """Convert the workload's weights to PyTorch's layout; images are flattened channel by channel there."""
    first, (height, width, channels) = 2 * len(work.convolutions), work.flattened
    tensors = []
    for i, value in enumerate(weights):
        if i == first:
            value = value.reshape(height, width, channels, -1).transpose(2, 0, 1, 3).reshape(value.shape)
        axes = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}[value.ndim]
        tensors.append(torch.from_numpy(np.ascontiguousarray(value.transpose(axes))))
    return tensors


def from_torch(work: Workload, parameters: Iterable[Tensor]) -> Weights:
    """Convert a network's parameters to the workload's layout."""
    first, (height, width, channels) = 2 * len(work.convolutions), work.flattened
    weights = []
    for i, parameter in enumerate(parameters):
        value = parameter.detach().cpu().numpy()
        value = value.transpose({4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[value.ndim])
        if i == first:
            value = value.reshape(channels, height, width, -1).transpose(1, 2, 0, 3).reshape(value.shape)
        weights.append(np.array(value))
    return weights
