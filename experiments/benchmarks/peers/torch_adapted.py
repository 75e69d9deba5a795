"""Frozen transformers in PyTorch, with the adapters of `peft`."""

from importlib import util

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ..workloads import AdaptedWorkload, TextWorkload, VisionWorkload
from ..workloads.adapted import ADAPTED, SCALE, Leaves
from . import UnusableError


def build_adapted_network(work: AdaptedWorkload) -> nn.Module:
    """Build a network whose trained parameters are adapters and head, in the workload's order."""
    if util.find_spec("peft") is None:
        raise UnusableError("peft is not installed: pip install peft")
    from peft import LoraConfig, inject_adapter_in_model

    leaves = work.frozen()
    match work:
        case VisionWorkload():
            model = _VisionNetwork(work, leaves)
        case TextWorkload():
            model = _TextNetwork(work, leaves)
        case _:
            raise UnusableError(f"there is no network for {work.name}")
    config = LoraConfig(r=work.rank, lora_alpha=int(SCALE * work.rank), target_modules=list(ADAPTED))
    inject_adapter_in_model(config, model)
    model.classifier.requires_grad_(bool(work.outer_shapes()[1]))
    return model


class _Attention(nn.Module):
    def __init__(self, work: AdaptedWorkload, leaves: Leaves, path: str):
        super().__init__()
        self.head_size, self.is_causal = work.head_size, isinstance(work, TextWorkload)
        self.query, self.key, self.value, self.out = (
            _dense(leaves, f"{path}/{name}") for name in ("query", "key", "value", "out")
        )

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.head_size)).transpose(-3, -2)
            for layer in (self.query, self.key, self.value)
        )
        if rotation is not None:
            query, key = _rotate(query, *rotation), _rotate(key, *rotation)
        is_grouped = query.shape[-3] != key.shape[-3]
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal, enable_gqa=is_grouped)
        return self.out(y.transpose(-3, -2).flatten(-2))


class _Block(nn.Module):
    def __init__(self, work: AdaptedWorkload, leaves: Leaves, path: str):
        super().__init__()
        self.attention = _Attention(work, leaves, f"{path}/attention")
        self.norm_0, self.norm_1 = (_norm(work, leaves, f"{path}/norm_{index}") for index in (0, 1))
        self.hidden = nn.ModuleList(_dense(leaves, f"{path}/{name}") for name in work.hidden_names)
        self.dense_1 = _dense(leaves, f"{path}/dense_1")

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x = x + self.attention(self.norm_0(x), rotation)
        first, *others = (layer(y) for y in (self.norm_1(x),) for layer in self.hidden)
        return x + self.dense_1(functional.silu(first) * others[0] if others else functional.gelu(first))


class _VisionNetwork(nn.Module):
    def __init__(self, work: VisionWorkload, leaves: Leaves):
        super().__init__()
        self.patches = nn.Conv2d(work.shape[2], work.features, work.patch, work.patch)
        kernel = np.ascontiguousarray(leaves["patches/kernel"].transpose(3, 2, 0, 1))
        self.patches.weight.data, self.patches.bias.data = _tensor(kernel), _tensor(leaves["patches/bias"])
        self.class_token, self.positions = (
            nn.Parameter(_tensor(leaves[name])) for name in ("class_token", "positions")
        )
        self.blocks = nn.ModuleList(_Block(work, leaves, f"block_{index}") for index in range(work.layers))
        self.norm = _norm(work, leaves, "norm")
        self.classifier = nn.Linear(work.features, work.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.norm(x[:, 0]))


class _TextNetwork(nn.Module):
    def __init__(self, work: TextWorkload, leaves: Leaves):
        super().__init__()
        angles = _tensor(work.angles())
        self.rotation = torch.cos(angles), torch.sin(angles)
        self.embedding = nn.Embedding.from_pretrained(_tensor(leaves["embedding/embedding"]))
        self.blocks = nn.ModuleList(_Block(work, leaves, f"block_{index}") for index in range(work.layers))
        self.norm, self.classifier = _norm(work, leaves, "norm"), _dense(leaves, "classifier")

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.rotation)
        return self.classifier(self.norm(x))


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat([-second, first], dim=-1) * sines


def _tensor(leaf: np.ndarray) -> Tensor:
    return torch.from_numpy(leaf.copy())


def _dense(leaves: Leaves, path: str) -> nn.Linear:
    kernel, bias = leaves[f"{path}/kernel"], leaves.get(f"{path}/bias")
    layer = nn.Linear(*kernel.shape, bias=bias is not None)
    layer.weight.data = _tensor(np.ascontiguousarray(kernel.T))
    if bias is not None:
        layer.bias.data = _tensor(bias)
    return layer


def _norm(work: AdaptedWorkload, leaves: Leaves, path: str) -> nn.Module:
    build = nn.LayerNorm if "bias" in work.norm_leaves else nn.RMSNorm
    layer = build(work.features, eps=work.epsilon)
    for name, leaf in zip(("weight", "bias"), work.norm_leaves, strict=False):
        getattr(layer, name).data = _tensor(leaves[f"{path}/{leaf}"])
    return layer
