"""Workloads of the benchmark as data: shapes, layers, examples, initial weights, the partition, and FLOP.

It needs NumPy alone, so that contenders in other environments read the same numbers. Everything follows from the
workload itself, so no data passes between processes.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

NUM_CLASSES = 10
Shape = tuple[int, int, int]  # height, width, channel
Weights = list[np.ndarray]
"""Kernel and bias of each layer in turn: [height, width, channel, features] or [inputs, units], float32."""


class Conv(NamedTuple):
    """A convolution with a square kernel, 2x2 max pooling behind it, ReLU."""

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


class Examples(NamedTuple):
    inputs: np.ndarray  # [n, height, width, channel] uint8; networks take inputs / 255 as float32
    labels: np.ndarray  # [n] int32
    clients: np.ndarray  # [clients, examples] int32: positions, in the order of the batches of every round


@dataclass(frozen=True)
class Workload:
    """A round of FedAvg: every client takes one epoch of plain SGD on the cross-entropy of its own examples.

    Behind the convolutions the image is flattened row by row, channels innermost; then come fully connected layers,
    ReLU behind all but the last.
    """

    base: str  # w1, w2, w3
    num_clients: int
    num_examples: int  # per client
    shape: Shape
    convolutions: tuple[Conv, ...]
    units: tuple[int, ...]  # of the fully connected layers
    batch_size: int
    learning_rate: float

    @property
    def name(self) -> str:
        """`base`, followed by the sizes if they are not those of the published figures."""
        is_whole = self == WORKLOADS.get(self.base)
        return self.base if is_whole else f"{self.base}-{self.num_clients}x{self.num_examples}"

    def resized(self, num_clients: int = 0, num_examples: int = 0) -> "Workload":
        """The same workload with other numbers of clients and of examples per client; 0 keeps a number."""
        return replace(
            self, num_clients=num_clients or self.num_clients, num_examples=num_examples or self.num_examples
        )

    @property
    def flattened(self) -> Shape:
        """The shape that is flattened for the first fully connected layer."""
        image = self.shape
        for layer in self.convolutions:
            image = layer.output_shape(image)
        return image

    @property
    def num_steps(self) -> int:
        """Gradient steps of all clients in a round."""
        return self.num_clients * -(-self.num_examples // self.batch_size)

    def flop(self) -> int:
        """Multiplications and additions of a round's convolutions and matrix products: forward, gradients of the
        weights, and gradients of the inputs of all layers but the first."""
        shapes = self._shapes()
        forward = [2 * int(np.prod(kernel)) * positions for kernel, positions in shapes]
        an_example = sum(3 * each for each in forward) - forward[0]
        return self.num_clients * self.num_examples * an_example

    def initial(self) -> Weights:
        """He-normal kernels, zero biases."""
        rng, weights = np.random.default_rng(7), []
        for kernel, _ in self._shapes():
            deviation = np.sqrt(2 / np.prod(kernel[:-1]))
            weights.append((deviation * rng.standard_normal(kernel)).astype(np.float32))
            weights.append(np.zeros(kernel[-1], np.float32))
        return weights

    def examples(self) -> Examples:
        """A pattern per class with noise of the same size. As there is something to learn, the clients' updates agree,
        and a ReLU whose input rounding moves across zero changes less of a round's update."""
        rng = np.random.default_rng([11, *self.shape])
        num = self.num_clients * self.num_examples
        patterns = rng.integers(0, 128, (NUM_CLASSES, *self.shape), np.uint8)
        labels = rng.integers(0, NUM_CLASSES, num, np.int32)
        inputs = rng.integers(0, 128, (num, *self.shape), np.uint8) + patterns[labels]
        parts = rng.permutation(num).astype(np.int32).reshape(self.num_clients, self.num_examples)
        return Examples(inputs, labels, np.sort(parts, axis=1))

    def loss(self, weights: Weights, inputs: np.ndarray, labels: np.ndarray) -> float:
        """Mean cross-entropy of the weights on these examples, in NumPy; contenders are compared by it."""
        x, remaining = inputs.astype(np.float32) / 255, list(weights)
        for layer in self.convolutions:
            kernel, bias, *remaining = remaining
            x = np.maximum(_max_pool(_convolve(x, kernel, layer.padding)) + bias, 0)
        x = x.reshape(len(x), -1)
        while remaining:
            kernel, bias, *remaining = remaining
            x = x @ kernel + bias
            x = np.maximum(x, 0) if remaining else x
        x = x - x.max(axis=1, keepdims=True)
        return float(np.mean(np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(x)), labels]))

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


W1 = Workload(
    base="w1",
    num_clients=10,
    num_examples=600,
    shape=(28, 28, 1),
    convolutions=(Conv(5, 32, "SAME"), Conv(5, 64, "SAME")),
    units=(512, NUM_CLASSES),
    batch_size=50,
    learning_rate=0.01,
)
W2 = Workload(
    base="w2",
    num_clients=10,
    num_examples=500,
    shape=(32, 32, 3),
    convolutions=(Conv(5, 6, "VALID"), Conv(5, 16, "VALID")),
    units=(120, 84, NUM_CLASSES),
    batch_size=50,
    learning_rate=0.05,
)
W3 = Workload(
    base="w3",
    num_clients=1000,
    num_examples=100,
    shape=(28, 28, 1),
    convolutions=(),
    units=(NUM_CLASSES,),
    batch_size=20,
    learning_rate=0.05,
)
WORKLOADS: Mapping[str, Workload] = MappingProxyType({work.base: work for work in (W1, W2, W3)})
