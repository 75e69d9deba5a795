"""Frozen transformers with low-rank adapters, as workloads."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .workload import Weights, Workload, cross_entropy, draw_images

Leaves = Mapping[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]  # by path
SCALE = 2.0  # of the adapters, alpha / r
ADAPTED = ("query", "value")


@dataclass(frozen=True, kw_only=True)
class AdaptedWorkload(Workload):
    """Pre-norm blocks; their layers query and value have adapters, which are trained, as is a head with a bias.

    The weights are those that are trained: lora_a [inputs, rank] and lora_b [rank, outputs] of query and value in each
    block; then kernel and bias of the head.
    """

    features: int
    layers: int
    heads: int
    kv_heads: int
    mlp_size: int
    rank: int = 8

    epsilon: ClassVar[float]  # of norms

    @property
    def head_size(self) -> int:
        return self.features // self.heads

    def frozen(self) -> dict[str, np.ndarray]:
        """The frozen leaves by path; kernels are [inputs, outputs], query and key and value of all heads in turn."""
        shapes = dict(self.outer_shapes()[0])
        for block in range(self.layers):
            shapes |= {f"block_{block}/{path}": shape for path, shape in self._block_shapes().items()}
        rng = np.random.default_rng(7)
        return {path: _draw(path, shape, rng) for path, shape in shapes.items()}

    def initial(self) -> Weights:
        rng = np.random.default_rng(8)
        return [_draw(path, shape, rng) for path, shape in self.trained_shapes().items()]

    def trained_shapes(self) -> Shapes:
        """The shapes of the weights by path."""
        dense = self.dense_shapes()
        shapes: Shapes = {}
        for block in range(self.layers):
            for name in ADAPTED:
                path, (inputs, outputs) = f"attention/{name}", dense[f"attention/{name}"]
                shapes[f"block_{block}/{path}/lora_a"] = inputs, self.rank
                shapes[f"block_{block}/{path}/lora_b"] = self.rank, outputs
        return shapes | self.outer_shapes()[1]

    def dense_shapes(self) -> Shapes:
        """The shapes of a block's kernels by the path of the layer."""
        size, kv_size = self.features, self.kv_heads * self.head_size
        outputs = {"query": size, "key": kv_size, "value": kv_size, "out": size}
        shapes: Shapes = {f"attention/{name}": (size, outputs[name]) for name in outputs}
        return shapes | dict.fromkeys(self.hidden_names, (size, self.mlp_size)) | {"dense_1": (self.mlp_size, size)}

    def flop(self) -> int:
        """Frozen products have no gradient of the weights; those before the first adapter have none of the inputs."""
        shapes = self.dense_shapes()
        block, first = (
            sum(math.prod(shape) for path, shape in shapes.items() if not path.endswith(unread))
            for unread in ((), ("query", "key", "value"))
        )
        adapters = sum(self.rank * sum(shapes[f"attention/{name}"]) for name in ADAPTED)
        attention = 2 * self.num_tokens * self.features
        embedding, head = self.outer_flop()
        backward = (self.layers - 1) * block + first
        frozen = 2 * self.num_tokens * (self.layers * block + backward)
        trained = 2 * self.num_tokens * self.layers * 3 * (adapters + attention)
        return self.num_clients * self.num_examples * (frozen + trained + embedding + head)

    def forward_flop(self) -> list[int]:
        block = sum(math.prod(shape) for shape in self.dense_shapes().values())
        return [2 * self.num_tokens * block] * self.layers

    def run_blocks(self, x: np.ndarray, leaves: Leaves) -> np.ndarray:
        """The residual stream [n, token, feature] behind the last norm."""
        for index in range(self.layers):
            block = {
                path.partition("/")[2]: leaf for path, leaf in leaves.items() if path.startswith(f"block_{index}/")
            }
            x = x + self._attend(self.normalize(x, block, "norm_0"), block)
            y = self.normalize(x, block, "norm_1")
            x = x + _dense(self.activate(*(_dense(y, block, name) for name in self.hidden_names)), block, "dense_1")
        return self.normalize(x, leaves, "norm")

    def loss(self, weights: Weights, inputs: np.ndarray, labels: np.ndarray) -> float:
        leaves = self.frozen() | dict(zip(self.trained_shapes(), weights, strict=True))
        logits = np.concatenate(
            [self.run_network(part, leaves) for part in np.array_split(inputs, -(-len(inputs) // 10))]
        )
        return cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    def _attend(self, x: np.ndarray, leaves: Leaves) -> np.ndarray:
        query, key, value = (
            _dense(x, leaves, f"attention/{name}").reshape(*x.shape[:2], -1, self.head_size).swapaxes(1, 2)
            for name in ("query", "key", "value")
        )
        query, key = self.rotate(query), self.rotate(key)
        key, value = (np.repeat(y, self.heads // self.kv_heads, axis=1) for y in (key, value))
        scores = self.mask(query @ key.swapaxes(2, 3) / np.float32(np.sqrt(self.head_size)))
        odds = np.exp(scores - scores.max(axis=-1, keepdims=True))
        y = (odds / odds.sum(axis=-1, keepdims=True)) @ value
        return _dense(y.swapaxes(1, 2).reshape(x.shape), leaves, "attention/out")

    def _block_shapes(self) -> Shapes:
        shapes: Shapes = {f"norm_{index}/{leaf}": (self.features,) for index in (0, 1) for leaf in self.norm_leaves}
        for path, shape in self.dense_shapes().items():
            shapes[f"{path}/kernel"] = shape
            if "bias" in self.norm_leaves:
                shapes[f"{path}/bias"] = shape[1:]
        return shapes

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Tokens of an example."""

    @property
    @abstractmethod
    def hidden_names(self) -> tuple[str, ...]:
        """The layers whose outputs are the arguments of `activate`."""

    @property
    @abstractmethod
    def norm_leaves(self) -> tuple[str, ...]:
        """The leaves of a norm; layers have biases where norms have them."""

    @abstractmethod
    def outer_shapes(self) -> tuple[Shapes, Shapes]:
        """The shapes of the leaves outside the blocks: of frozen ones, of trained ones."""

    @abstractmethod
    def outer_flop(self) -> tuple[int, int]:
        """Multiplications and additions for an example before and behind the blocks, in both directions."""

    @abstractmethod
    def run_network(self, inputs: np.ndarray, leaves: Leaves) -> np.ndarray:
        """The logits."""

    @abstractmethod
    def normalize(self, x: np.ndarray, leaves: Leaves, path: str) -> np.ndarray:
        """The norm at this path."""

    @abstractmethod
    def activate(self, *hidden: np.ndarray) -> np.ndarray:
        """The nonlinearity between a block's dense layers."""

    def rotate(self, x: np.ndarray) -> np.ndarray:
        """Queries or keys [n, head, token, head size] at their positions."""
        return x

    def mask(self, scores: np.ndarray) -> np.ndarray:
        """The scores [n, head, query, key] of keys that a query sees."""
        return scores


@dataclass(frozen=True, kw_only=True)
class VisionWorkload(AdaptedWorkload):
    """ViT: patches and a class token, LayerNorm, GELU by the error function; the head is trained."""

    shape: tuple[int, int, int]
    patch: int

    hidden_names = ("dense_0",)
    norm_leaves = ("scale", "bias")
    epsilon = 1e-6

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return self.shape

    @property
    def num_tokens(self) -> int:
        return 1 + self.shape[0] * self.shape[1] // self.patch**2

    def draw_examples(self, num: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return draw_images(self.shape, self.num_classes, num, rng)

    def outer_shapes(self) -> tuple[Shapes, Shapes]:
        size, classes = self.features, self.num_classes
        frozen: Shapes = {"patches/kernel": (self.patch, self.patch, self.shape[2], size), "patches/bias": (size,)}
        frozen |= {"class_token": (size,), "positions": (self.num_tokens, size)}
        frozen |= {f"norm/{leaf}": (size,) for leaf in self.norm_leaves}
        return frozen, {"classifier/kernel": (size, classes), "classifier/bias": (classes,)}

    def outer_flop(self) -> tuple[int, int]:
        return 2 * math.prod(self.shape) * self.features, 3 * 2 * self.features * self.num_classes

    def run_network(self, inputs: np.ndarray, leaves: Leaves) -> np.ndarray:
        (height, width, channels), size = self.shape, self.patch
        x = inputs.astype(np.float32).reshape(-1, height // size, size, width // size, size, channels) / 255
        kernel = leaves["patches/kernel"].reshape(-1, self.features)
        x = x.swapaxes(2, 3).reshape(len(inputs), -1, len(kernel)) @ kernel + leaves["patches/bias"]
        token = np.broadcast_to(leaves["class_token"], (len(x), 1, self.features))
        x = self.run_blocks(np.concatenate([token, x], axis=1) + leaves["positions"], leaves)
        return _dense(x[:, 0], leaves, "classifier")

    def normalize(self, x: np.ndarray, leaves: Leaves, path: str) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(self.epsilon))
        return x * leaves[f"{path}/scale"] + leaves[f"{path}/bias"]

    def activate(self, *hidden: np.ndarray) -> np.ndarray:
        (x,) = hidden
        return x * (1 + _erf(x * np.float32(math.sqrt(0.5)))) / 2


@dataclass(frozen=True, kw_only=True)
class TextWorkload(AdaptedWorkload):
    """Llama: rotary positions, causal attention, RMSNorm, SwiGLU; the next token at every position, by a frozen head.

    Classes are the tokens of the vocabulary.
    """

    length: int

    hidden_names = ("dense_gate", "dense_0")
    norm_leaves = ("scale",)
    epsilon, theta = 1e-5, 10_000.0

    @property
    def input_shape(self) -> tuple[int]:
        return (self.length,)

    @property
    def num_tokens(self) -> int:
        return self.length

    def draw_examples(self, num: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Copies of ten texts, in which a quarter of the tokens is replaced."""
        shape = (num, self.length + 1)
        texts = rng.integers(0, self.num_classes, (10, self.length + 1), np.int32)[rng.integers(0, 10, num)]
        texts = np.where(rng.random(shape) < 0.25, rng.integers(0, self.num_classes, shape, np.int32), texts)
        return texts[:, :-1], texts[:, 1:]

    def outer_shapes(self) -> tuple[Shapes, Shapes]:
        size, classes = self.features, self.num_classes
        frozen: Shapes = {"embedding/embedding": (classes, size), "norm/scale": (size,)}
        return frozen | {"classifier/kernel": (size, classes)}, {}

    def outer_flop(self) -> tuple[int, int]:
        return 0, 2 * 2 * self.length * self.features * self.num_classes

    def run_network(self, inputs: np.ndarray, leaves: Leaves) -> np.ndarray:
        return _dense(self.run_blocks(leaves["embedding/embedding"][inputs], leaves), leaves, "classifier")

    def normalize(self, x: np.ndarray, leaves: Leaves, path: str) -> np.ndarray:
        x = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(self.epsilon))
        return x * leaves[f"{path}/scale"]

    def activate(self, *hidden: np.ndarray) -> np.ndarray:
        gate, x = hidden
        return gate / (1 + np.exp(-gate)) * x

    def angles(self) -> np.ndarray:
        """The angles of positions [length, head size], twice those of half a head."""
        frequencies = self.theta ** (-np.arange(0, self.head_size, 2) / self.head_size)
        return np.tile(np.arange(self.length)[:, None] * frequencies, 2).astype(np.float32)

    def rotate(self, x: np.ndarray) -> np.ndarray:
        first, second = np.split(x, 2, axis=-1)
        return x * np.cos(self.angles()) + np.concatenate([-second, first], axis=-1) * np.sin(self.angles())

    def mask(self, scores: np.ndarray) -> np.ndarray:
        return np.where(np.tri(self.length, dtype=bool), scores, -np.inf)


def _dense(x: np.ndarray, leaves: Leaves, path: str) -> np.ndarray:
    y = x @ leaves[f"{path}/kernel"] + leaves.get(f"{path}/bias", 0)
    if f"{path}/lora_a" in leaves:
        y = y + np.float32(SCALE) * (x @ leaves[f"{path}/lora_a"] @ leaves[f"{path}/lora_b"])
    return y


def _erf(x: np.ndarray) -> np.ndarray:
    """The error function to 1.5e-7: Abramowitz and Stegun, 7.1.26."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    powers = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return np.sign(x) * (1 - powers * np.exp(-x * x))


def _draw(path: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    kind, x = path.rpartition("/")[2], rng.standard_normal(shape)
    scales = {"kernel": math.prod(shape[:-1]) ** -0.5, "lora_a": shape[0] ** -0.5, "lora_b": 0.0, "scale": 0.1}
    return (x * scales.get(kind, 0.1) + (kind == "scale")).astype(np.float32)
