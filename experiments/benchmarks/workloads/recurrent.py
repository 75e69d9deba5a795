"""A character LSTM as a workload: the next character of a text."""

import itertools
from dataclasses import dataclass

import numpy as np

from .workload import Weights, Workload, cross_entropy


@dataclass(frozen=True, kw_only=True)
class RecurrentWorkload(Workload):
    """LEAF's network: an embedding, layers of LSTM, and a classifier of the last position.

    The weights: the embedding [vocabulary, embedding]; of each layer kernel [inputs, 4 units], recurrent kernel [units,
    4 units] and bias [4 units], with the gates in the order input, forget, cell, output, and 1 added to the forget
    gate; kernel and bias of the classifier. The vocabulary is that of the classes.
    """

    length: int
    embedding: int
    hidden: tuple[int, ...]

    @property
    def input_shape(self) -> tuple[int]:
        return (self.length,)

    def draw_examples(self, num: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """A text per class, in which half of the characters are replaced."""
        texts = rng.integers(0, self.num_classes, (self.num_classes, self.length), np.int32)
        labels = rng.integers(0, self.num_classes, num, np.int32)
        others = rng.integers(0, self.num_classes, (num, self.length), np.int32)
        return np.where(rng.random((num, self.length)) < 0.5, texts[labels], others), labels

    def forward_flop(self) -> list[int]:
        pairs = itertools.pairwise((self.embedding, *self.hidden))
        layers = [2 * self.length * 4 * units * size for pair in pairs for units, size in ((pair[1], sum(pair)),)]
        return [0, *layers, 2 * self.hidden[-1] * self.num_classes]  # the embedding has no product

    def initial(self) -> Weights:
        rng = np.random.default_rng(7)

        def draw(*shape: int) -> np.ndarray:
            return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

        weights = [rng.standard_normal((self.num_classes, self.embedding)).astype(np.float32)]
        for size, units in itertools.pairwise((self.embedding, *self.hidden)):
            weights += [draw(size, 4 * units), draw(units, 4 * units), np.zeros(4 * units, np.float32)]
        return [*weights, draw(self.hidden[-1], self.num_classes), np.zeros(self.num_classes, np.float32)]

    def loss(self, weights: Weights, inputs: np.ndarray, labels: np.ndarray) -> float:
        x, layers = weights[0][inputs], weights[1:-2]
        for kernel, recurrent, bias in zip(layers[::3], layers[1::3], layers[2::3], strict=True):
            cell = hidden = np.zeros((len(x), len(recurrent)), np.float32)
            shown = []
            for position in range(self.length):
                gates = x[:, position] @ kernel + bias + hidden @ recurrent
                written, forgotten, candidate, output = np.split(gates, 4, axis=1)
                cell = _sigmoid(forgotten + 1) * cell + _sigmoid(written) * np.tanh(candidate)
                hidden = _sigmoid(output) * np.tanh(cell)
                shown.append(hidden)
            x = np.stack(shown, axis=1)
        return cross_entropy(x[:, -1] @ weights[-2] + weights[-1], labels)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
