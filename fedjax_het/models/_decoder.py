"""Decoders of texts: causal networks that predict the next token, or classify a sequence."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.models._attention import Block, Rotation
from fedjax_het.models._dense import Dense
from fedjax_het.models._model import Network, from_flax
from fedjax_het.models._pretrained import Naming
from fedjax_het.models._published import starting_from
from fedjax_het.models._tokens import Outputs, check_tokens, count_positions, take_last
from fedjax_het.types import Array, Model


def name_layers(
    prefix: str, blocks: str, layers: Mapping[str, str], own: Mapping[str, str], **options: Any
) -> Mapping[str, Naming]:
    """The names of a decoder by its outputs, which differ in the head."""
    names = {f"block_#/{ours}": f"{prefix}{blocks}.<1>.{path}" for ours, path in layers.items()}
    names |= {ours: f"{prefix}{path}" for ours, path in own.items()}
    naming = Naming(names, prefix=prefix, **options)
    return {
        "last": naming._replace(layers=names | {"classifier": "score"}),
        "every": naming._replace(layers=names | {"classifier": "lm_head"}, needs_head=True),
    }


class Rotary(NamedTuple):
    """Rotary positions: angles t theta^(-2 j / head size), of slow ones divided by a factor (Llama 3.1)."""

    theta: float
    head_size: int
    scaling: tuple[float, ...] | None  # factor, low and high frequency factor, original length

    def __call__(self, positions: Array, dtype: jnp.dtype) -> Rotation:
        frequencies = self.theta ** (-np.arange(0, self.head_size, 2) / self.head_size)
        if self.scaling is not None:
            factor, low, high, length = self.scaling
            share = np.clip((length * frequencies / (2 * math.pi) - low) / (high - low), 0, 1)
            frequencies = frequencies * (share + (1 - share) / factor)
        exact = jnp.promote_types(dtype, jnp.float32)
        angles = positions[..., None].astype(exact) * jnp.asarray(frequencies, exact)
        angles = jnp.concatenate([angles, angles], axis=-1)
        return jnp.cos(angles), jnp.sin(angles)


class Decoder(Network):
    """Embeddings, pre-norm blocks with causal attention, a norm, and the classifier of the last or of every position.

    With outputs="every", the logits are those of the vocabulary, cut to the classes; if tied, by the embeddings.
    """

    vocabulary: int
    features: int
    layers: int
    block: Callable[..., Block]
    norm: Callable[..., nn.Module]
    positions: int | Rotary  # rows of position embeddings
    outputs: Outputs
    is_tied: bool
    dropout: float

    def setup(self):
        self.embedding = nn.Embed(self.vocabulary, self.features)
        if self.outputs == "last" or not self.is_tied:
            self.classifier = Dense(self.num_classes if self.outputs == "last" else self.vocabulary, use_bias=False)

    @nn.compact
    def encode(self, x: Array, mask: Array, is_training: bool) -> Array:
        check_tokens("a text decoder", x, None if isinstance(self.positions, Rotary) else self.positions)
        is_token, rotation = x >= 0, None
        x, positions = self.embedding(jnp.maximum(x, 0)), count_positions(is_token)
        if isinstance(self.positions, Rotary):
            rotation = self.positions(positions, x.dtype)
        else:
            x = x + nn.Embed(self.positions, self.features, name="positions")(positions)
        x = nn.Dropout(self.dropout, deterministic=not is_training)(x)
        for index in range(self.layers):
            x = self.block(name=f"block_{index}")(x, is_training, is_token, rotation)
        x = self.norm(name="norm")(x)
        return take_last(x, is_token) if self.outputs == "last" else x

    def classify(self, features: Array) -> Array:
        head = self.classifier if self.outputs == "last" or not self.is_tied else self.embedding.attend
        return head(features)[..., : self.num_classes]


def make_decoder(
    num_classes: int,
    outputs: Outputs,
    pretrained: str | None,
    names: Mapping[str, Naming],
    block: Callable[..., Block],
    norm: Callable[..., nn.Module],
    positions: int | Rotary,
    sizes: Mapping[str, Any],
    config: Mapping[str, Any],
) -> Model:
    """The model of a decoder.

    Raises:
        InputError: The vocabulary has fewer tokens than there are classes to predict.
    """
    if outputs == "every" and num_classes > sizes["vocabulary"]:
        raise InputError(
            f"vocabulary: {sizes['vocabulary']} tokens cannot predict {num_classes} classes. Use the tokenizer of "
            "these weights, or outputs='last'."
        )
    own = {name: sizes[name] for name in ("vocabulary", "features", "layers", "is_tied", "dropout")}
    block = partial(block, norm=norm, dropout=sizes["dropout"])
    network = Decoder(num_classes, block=block, norm=norm, positions=positions, outputs=outputs, **own)
    return starting_from(pretrained, names[outputs], config=config)(from_flax(network))
