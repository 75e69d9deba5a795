"""The workloads in PyTorch: networks, their weights to and from the workloads' layout, and the examples as tensors."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..workloads import AdaptedWorkload, LayeredWorkload, RecurrentWorkload, ResidualWorkload, Weights, Workload
from ..workloads.residual import Convolution
from . import ContenderSettings, UnusableError
from .torch_adapted import build_adapted_network


class Tensors(NamedTuple):
    inputs: Tensor  # [n, channel, height, width] float32, in 0..1, channels innermost in memory; or tokens int64
    labels: Tensor  # [n] or [n, length] int64
    clients: Tensor  # [clients, examples] int64


def select_device(settings: ContenderSettings) -> torch.device:
    """Set up and return the GPU if there is one, else the CPU. Raises UnusableError for an unsupported precision."""
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
    inputs = torch.from_numpy(examples.inputs).to(device)
    inputs = inputs.float().div_(255).permute(0, 3, 1, 2) if inputs.ndim == 4 else inputs.long()
    labels, clients = (torch.from_numpy(array).to(device).long() for array in (examples.labels, examples.clients))
    return Tensors(inputs, labels, clients)


def build_network(work: Workload) -> nn.Module:
    """Build the workload's network with its initial weights, in the mode for training."""
    match work:
        case LayeredWorkload():
            model = _build_layers(work)
        case ResidualWorkload():
            model = _build_residual_network(work)
        case AdaptedWorkload():
            model = build_adapted_network(work)
        case RecurrentWorkload():
            model = _RecurrentNetwork(work)
        case _:
            raise UnusableError(f"there is no network for {work.name}")
    with torch.no_grad():
        for parameter, value in zip(trained_parameters(model), to_torch(work, work.initial()), strict=True):
            parameter.copy_(value)
    return model


def trained_parameters(model: nn.Module) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of all labels: logits [..., classes], labels [...]."""
    return cross_entropy(logits.flatten(0, -2), labels.flatten())


def averaged_tensors(model: nn.Module) -> list[Tensor]:
    """The averaged tensors: the trained parameters, then the running statistics of norms."""
    statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    return [*trained_parameters(model), *statistics]


def _build_layers(work: LayeredWorkload) -> nn.Module:
    """Pooled before ReLU, which gives the same result with less work."""
    modules, channels = [], work.shape[2]
    for layer in work.convolutions:
        convolution = nn.Conv2d(channels, layer.features, layer.kernel, padding=layer.padding.lower())
        modules += [convolution, nn.MaxPool2d(2), nn.ReLU()]
        channels = layer.features
    modules, size = [*modules, nn.Flatten()], int(np.prod(work.flattened))
    for units in work.units:
        modules += [nn.Linear(size, units), nn.ReLU()]
        size = units
    return nn.Sequential(*modules[:-1])


def _build_residual_network(work: ResidualWorkload) -> nn.Module:
    layers = {layer.path: layer for layer in work.convolutions}
    modules = [_convolve_and_norm(layers["stem", ""])]
    modules += [nn.MaxPool2d(3, 2, 1), nn.ReLU()] if work.stem == "imagenet" else [nn.ReLU()]
    modules += [_Block(layers, name) for name in dict.fromkeys(block for block, _ in layers if block != "stem")]
    classifier = nn.Linear(work.convolutions[-1].features, work.num_classes)
    return nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), classifier)


def _convolve_and_norm(layer: Convolution) -> nn.Module:
    padding = layer.kernel // 2
    convolution = nn.Conv2d(layer.inputs, layer.features, layer.kernel, layer.strides, padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(layer.features))


class _Block(nn.Module):
    def __init__(self, layers: Mapping[tuple[str, str], Convolution], name: str):
        super().__init__()
        self.first, self.second = (_convolve_and_norm(layers[name, index]) for index in "01")
        has_shortcut = (name, "shortcut") in layers
        self.shortcut = _convolve_and_norm(layers[name, "shortcut"]) if has_shortcut else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


class _RecurrentNetwork(nn.Module):
    """PyTorch has a second bias, which is not trained: it is the 1 that is added to the forget gate."""

    def __init__(self, work: RecurrentWorkload):
        super().__init__()
        (units,) = set(work.hidden)
        self.embedding = nn.Embedding(work.num_classes, work.embedding)
        self.lstm = nn.LSTM(work.embedding, units, len(work.hidden), batch_first=True)
        self.classifier = nn.Linear(units, work.num_classes)
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("bias_hh"):
                nn.init.zeros_(parameter.requires_grad_(False))
                parameter.data[units : 2 * units] = 1

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.lstm(self.embedding(x))[0][:, -1])


_TO_TORCH = {4: (3, 2, 0, 1), 2: (1, 0), 1: (0,)}  # axes, by their number
_FROM_TORCH = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}


def to_torch(work: Workload, weights: Weights) -> list[Tensor]:
    """Convert the workload's weights to PyTorch's layout."""
    tensors = []
    for i, value in enumerate(weights):
        if _is_behind_flattening(work, i):  # PyTorch flattens images channel by channel
            height, width, channels = work.flattened
            value = value.reshape(height, width, channels, -1).transpose(2, 0, 1, 3).reshape(value.shape)
        value = value if _is_embedding(work, i) else value.transpose(_TO_TORCH[value.ndim])
        tensors.append(torch.from_numpy(np.ascontiguousarray(value)))
    return tensors


def from_torch(work: Workload, tensors: Iterable[Tensor]) -> Weights:
    """Convert a network's parameters to the workload's layout; tensors behind them are left out."""
    weights = []
    for i, (tensor, _) in enumerate(zip(tensors, work.initial(), strict=False)):
        value = tensor.detach().cpu().numpy()
        value = value if _is_embedding(work, i) else value.transpose(_FROM_TORCH[value.ndim])
        if _is_behind_flattening(work, i):
            height, width, channels = work.flattened
            value = value.reshape(channels, height, width, -1).transpose(1, 2, 0, 3).reshape(value.shape)
        weights.append(np.array(value))
    return weights


def _is_behind_flattening(work: Workload, index: int) -> TypeGuard[LayeredWorkload]:
    return isinstance(work, LayeredWorkload) and index == 2 * len(work.convolutions)


def _is_embedding(work: Workload, index: int) -> bool:
    return isinstance(work, RecurrentWorkload) and index == 0
