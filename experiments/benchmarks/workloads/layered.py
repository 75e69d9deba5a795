"""Convolutions with pooling and fully connected layers, as a workload."""

import itertools
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .workload import Shape, Weights, Workload, cross_entropy, draw_images, he_normal


class Conv(NamedTuple):
    """A convolution with a square kernel, followed by 2x2 max pooling and ReLU."""

    kernel: int
    features: int
    padding: Literal["SAME", "VALID"]

    def output_size(self, image: Shape) -> tuple[int, int]:
        """Height and width before pooling."""
        lost = self.kernel - 1 if self.padding == "VALID" else 0
        return image[0] - lost, image[1] - lost

    def output_shape(self, image: Shape) -> Shape:
        height, width = self.output_size(image)
        return height // 2, width // 2, self.features


@dataclass(frozen=True, kw_only=True)
class LayeredWorkload(Workload):
    """Behind the convolutions the image is flattened row by row, channels innermost; then come fully connected layers,
    ReLU behind all but the last. The weights are kernel and bias of each layer in turn.
    """

    shape: Shape
    convolutions: tuple[Conv, ...]
    units: tuple[int, ...]  # of the fully connected layers

    @property
    def input_shape(self) -> Shape:
        return self.shape

    @property
    def flattened(self) -> Shape:
        """The shape that is flattened for the first fully connected layer."""
        image = self.shape
        for layer in self.convolutions:
            image = layer.output_shape(image)
        return image

    def draw_examples(self, num: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return draw_images(self.shape, self.num_classes, num, rng)

    def forward_flop(self) -> list[int]:
        return [2 * int(np.prod(kernel)) * positions for kernel, positions in self._shapes()]

    def initial(self) -> Weights:
        """He-normal kernels, zero biases."""
        rng, weights = np.random.default_rng(7), []
        for kernel, _ in self._shapes():
            weights += [he_normal(rng, kernel), np.zeros(kernel[-1], np.float32)]
        return weights

    def loss(self, weights: Weights, inputs: np.ndarray, labels: np.ndarray) -> float:
        x, remaining = inputs.astype(np.float32) / 255, list(weights)
        for layer in self.convolutions:
            kernel, bias, *remaining = remaining
            x = np.maximum(_max_pool(_convolve(x, kernel, layer.padding)) + bias, 0)
        x = x.reshape(len(x), -1)
        while remaining:
            kernel, bias, *remaining = remaining
            x = x @ kernel + bias
            x = np.maximum(x, 0) if remaining else x
        return cross_entropy(x, labels)

    def _shapes(self) -> list[tuple[tuple[int, ...], int]]:
        """The shape of each layer's kernel, and the number of positions at which it is applied."""
        image, shapes = self.shape, []
        for layer in self.convolutions:
            height, width = layer.output_size(image)
            shapes.append(((layer.kernel, layer.kernel, image[2], layer.features), height * width))
            image = layer.output_shape(image)
        sizes = [int(np.prod(image)), *self.units]
        return shapes + [(pair, 1) for pair in itertools.pairwise(sizes)]


def _convolve(x: np.ndarray, kernel: np.ndarray, padding: Literal["SAME", "VALID"]) -> np.ndarray:
    size = kernel.shape[0]
    margin = (size // 2, size // 2) if padding == "SAME" else (0, 0)
    windows = sliding_window_view(np.pad(x, ((0, 0), margin, margin, (0, 0))), (size, size), axis=(1, 2))
    return np.tensordot(windows, kernel, axes=([4, 5, 3], [0, 1, 2]))


def _max_pool(x: np.ndarray) -> np.ndarray:
    num, height, width, channels = x.shape
    cropped = x[:, : height // 2 * 2, : width // 2 * 2]
    return cropped.reshape(num, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))
