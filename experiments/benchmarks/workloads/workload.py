"""The base of all workloads of the benchmark: sizes, examples, and the figures that a network must state."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

NUM_CLASSES = 10
Shape = tuple[int, int, int]  # height, width, channel
Weights = list[np.ndarray]
"""In the order of the layers: kernels [height, width, channel, features] of convolutions, others [inputs, units]."""


class Examples(NamedTuple):
    inputs: np.ndarray  # [n, height, width, channel] uint8, networks take inputs / 255; or tokens [n, length] int32
    labels: np.ndarray  # [n], or [n, length] of every token, int32
    clients: np.ndarray  # [clients, examples] int32: positions, in the order of the batches of every round


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    """A round of FedAvg: every client takes one epoch of plain SGD on the cross-entropy of its own examples.

    Everything follows from the workload itself, so no data passes between processes.
    """

    base: str  # the name without the sizes
    num_clients: int
    num_examples: int  # per client
    batch_size: int
    learning_rate: float
    num_classes: int = NUM_CLASSES
    is_whole: bool = True  # whether the sizes are those of the published figures

    @property
    def name(self) -> str:
        """`base`, followed by the sizes if they are not those of the published figures."""
        return self.base if self.is_whole else f"{self.base}-{self.num_clients}x{self.num_examples}"

    def resized(self, num_clients: int = 0, num_examples: int = 0) -> Self:
        """The same workload with other numbers of clients and of examples per client; 0 keeps a number."""
        sizes = num_clients or self.num_clients, num_examples or self.num_examples
        is_whole = self.is_whole and sizes == (self.num_clients, self.num_examples)
        return replace(self, num_clients=sizes[0], num_examples=sizes[1], is_whole=is_whole)

    @property
    def num_steps(self) -> int:
        """Gradient steps of all clients in a round."""
        return self.num_clients * -(-self.num_examples // self.batch_size)

    def flop(self) -> int:
        """Multiplications and additions of a round's convolutions and matrix products: forward, gradients of the
        weights, and gradients of the inputs of all layers but the first."""
        forward = self.forward_flop()
        return self.num_clients * self.num_examples * (3 * sum(forward) - forward[0])

    def examples(self) -> Examples:
        """Examples of the classes in equal parts, distributed over the clients at random."""
        rng = np.random.default_rng([11, *self.input_shape])
        num = self.num_clients * self.num_examples
        inputs, labels = self.draw_examples(num, rng)
        parts = rng.permutation(num).astype(np.int32).reshape(self.num_clients, self.num_examples)
        return Examples(inputs, labels, np.sort(parts, axis=1))

    @property
    @abstractmethod
    def input_shape(self) -> tuple[int, ...]:
        """The shape of an example."""

    @abstractmethod
    def draw_examples(self, num: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw inputs and labels that can be learned: the clients' updates then agree, and a ReLU
        whose input rounding moves across zero changes less of a round's update."""

    @abstractmethod
    def forward_flop(self) -> list[int]:
        """Multiplications and additions of each layer's product, for one example."""

    @abstractmethod
    def initial(self) -> Weights:
        """The initial weights."""

    def frozen(self) -> dict[str, np.ndarray]:
        """The leaves that are not trained, by path."""
        return {}

    @abstractmethod
    def loss(self, weights: Weights, inputs: np.ndarray, labels: np.ndarray) -> float:
        """Mean cross-entropy of the weights on these examples, in NumPy; contenders are compared by it."""


def draw_images(shape: Shape, num_classes: int, num: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw a pattern per class with noise of the same size."""
    patterns = rng.integers(0, 128, (num_classes, *shape), np.uint8)
    labels = rng.integers(0, num_classes, num, np.int32)
    return rng.integers(0, 128, (num, *shape), np.uint8) + patterns[labels], labels


def he_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a kernel whose last axis is that of the outputs."""
    return (np.sqrt(2 / np.prod(shape[:-1])) * rng.standard_normal(shape)).astype(np.float32)


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """The mean over examples [n, classes]."""
    x = logits - logits.max(axis=1, keepdims=True)
    return float(np.mean(np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(x)), labels]))
