"""ResNet-18 with batch norm, as a workload."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .workload import Shape, Weights, Workload, cross_entropy, draw_images, he_normal

CHANNELS, NUM_BLOCKS = (64, 128, 256, 512), 2  # of each stage
_EPSILON = 1e-5


class Convolution(NamedTuple):
    """A convolution without a bias, padded by half its kernel, followed by batch norm."""

    path: tuple[str, str]  # the block, and the number in it
    kernel: int
    inputs: int
    features: int
    strides: int


@dataclass(frozen=True, kw_only=True)
class ResidualWorkload(Workload):
    """ResNet-18 with batch norm.

    The weights have PyTorch's order: of each convolution its kernel, and scale and bias of its norm, a block's shortcut
    last; then kernel and bias of the classifier.
    """

    shape: Shape
    stem: Literal["imagenet", "small"]  # 7x7 of stride 2 and a maximum of stride 2, or 3x3 of stride 1

    @property
    def input_shape(self) -> Shape:
        return self.shape

    def draw_examples(self, num: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return draw_images(self.shape, self.num_classes, num, rng)

    @property
    def convolutions(self) -> list[Convolution]:
        kernel, strides = (7, 2) if self.stem == "imagenet" else (3, 1)
        layers, before = [Convolution(("stem", ""), kernel, self.shape[2], CHANNELS[0], strides)], CHANNELS[0]
        for stage, features in enumerate(CHANNELS):
            for index in range(NUM_BLOCKS):
                block, first = f"stage_{stage}_block_{index}", 2 if stage and not index else 1
                layers.append(Convolution((block, "0"), 3, before, features, first))
                layers.append(Convolution((block, "1"), 3, features, features, 1))
                if first > 1:
                    layers.append(Convolution((block, "shortcut"), 1, before, features, first))
                before = features
        return layers

    def forward_flop(self) -> list[int]:
        products, size = [], self.shape[0]
        for layer in self.convolutions:
            if layer.path[1] != "shortcut":
                size //= layer.strides
            products.append(2 * layer.kernel**2 * layer.inputs * layer.features * size**2)
            if layer.path[0] == "stem" and self.stem == "imagenet":
                size //= 2
        return [*products, 2 * CHANNELS[-1] * self.num_classes]

    def initial(self) -> Weights:
        rng, weights = np.random.default_rng(7), []
        for layer in self.convolutions:
            weights.append(he_normal(rng, (layer.kernel, layer.kernel, layer.inputs, layer.features)))
            weights += [np.ones(layer.features, np.float32), np.zeros(layer.features, np.float32)]
        classifier = he_normal(rng, (CHANNELS[-1], self.num_classes))
        return [*weights, classifier, np.zeros(self.num_classes, np.float32)]

    def loss(self, weights: Weights, inputs: np.ndarray, labels: np.ndarray) -> float:
        """With the statistics of these examples in the norms, as in training."""
        layers = {layer.path: (layer, weights[3 * i : 3 * i + 3]) for i, layer in enumerate(self.convolutions)}
        normed = lambda x, *path: _convolve_and_norm(x, *layers[path])  # noqa: E731
        x = np.maximum(normed(inputs.astype(np.float32) / 255, "stem", ""), 0)
        if self.stem == "imagenet":
            padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            x = sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::2, ::2].max(axis=(4, 5))
        for block in dict.fromkeys(block for block, _ in layers if block != "stem"):
            y = normed(np.maximum(normed(x, block, "0"), 0), block, "1")
            x = np.maximum(y + (normed(x, block, "shortcut") if (block, "shortcut") in layers else x), 0)
        return cross_entropy(x.mean(axis=(1, 2)) @ weights[-2] + weights[-1], labels)


def _convolve_and_norm(x: np.ndarray, layer: Convolution, weights: Weights) -> np.ndarray:
    kernel, scale, bias = weights
    margin = (layer.kernel // 2, layer.kernel // 2)
    padded = np.pad(x, ((0, 0), margin, margin, (0, 0)))
    windows = sliding_window_view(padded, (layer.kernel, layer.kernel), axis=(1, 2))
    y = np.tensordot(windows[:, :: layer.strides, :: layer.strides], kernel, axes=([4, 5, 3], [0, 1, 2]))
    mean, variance = y.mean(axis=(0, 1, 2)), y.var(axis=(0, 1, 2))
    return (y - mean) / np.sqrt(variance + _EPSILON) * scale + bias
