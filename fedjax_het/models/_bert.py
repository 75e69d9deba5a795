"""Encoders of texts: BERT, RoBERTa and DistilBERT, and sentence models with their layers."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Unpack

import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.models._attention import Activation, Attention, Block
from fedjax_het.models._dense import Dense
from fedjax_het.models._model import Network, NumClasses, from_flax
from fedjax_het.models._norms import LayerNorm
from fedjax_het.models._pretrained import Naming
from fedjax_het.models._published import starting_from
from fedjax_het.models._tokens import (
    ACTIVATIONS,
    Family,
    Sizes,
    check_tokens,
    count_positions,
    take_first,
)
from fedjax_het.types import Array, Model
from fedjax_het.validation import Count, validate_arguments

Pooling = Literal["head", "mean"]
_PROJECTIONS = ("query", "key", "value")


def _name_layers(prefix: str, block: str, layers: dict[str, str], **options: Any) -> Naming:
    """The names of an encoder; layers: {layer of a block: its name}, or of the network, whose names begin with "/"."""
    own = {name: path[1:] for name, path in layers.items() if path.startswith("/")}
    blocks = {f"block_#/{name}": f"{prefix}{block}.<1>.{path}" for name, path in layers.items() if path[0] != "/"}
    embeddings = {
        "embedding": f"{prefix}embeddings.word_embeddings",
        "positions": f"{prefix}embeddings.position_embeddings",
        "token_types": f"{prefix}embeddings.token_type_embeddings",
        "norm": f"{prefix}embeddings.LayerNorm",
    }
    former = {r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"}
    return Naming(embeddings | blocks | own, former=former, prefix=prefix, optional=("pooler",), **options)


_LAYERS = {
    **{f"attention/{name}": f"attention.self.{name}" for name in _PROJECTIONS},
    "attention/out": "attention.output.dense",
    "norm_0": "attention.output.LayerNorm",
    "dense_0": "intermediate.dense",
    "dense_1": "output.dense",
    "norm_1": "output.LayerNorm",
}
BERT_NAMES = _name_layers(
    "bert.",
    "encoder.layer",
    _LAYERS | {"pooler": "/bert.pooler.dense", "classifier": "/classifier"},
    ignored=r"cls\..*|(bert\.)?(embeddings\.position_ids|pooler\..*)",
)
ROBERTA_NAMES = _name_layers(
    "roberta.",
    "encoder.layer",
    _LAYERS | {"pooler": "/classifier.dense", "classifier": "/classifier.out_proj"},
    ignored=r"(lm_head|classifier\.dense)\..*|(roberta\.)?(embeddings\.position_ids|pooler\..*)",
)
DISTILBERT_NAMES = _name_layers(
    "distilbert.",
    "transformer.layer",
    {
        **{f"attention/{name}": f"attention.{name[0]}_lin" for name in _PROJECTIONS},
        "attention/out": "attention.out_lin",
        "norm_0": "sa_layer_norm",
        "dense_0": "ffn.lin1",
        "dense_1": "ffn.lin2",
        "norm_1": "output_layer_norm",
        "pooler": "/pre_classifier",
        "classifier": "/classifier",
    },
    ignored=r"(vocab_\w+|pre_classifier)\..*|(distilbert\.)?embeddings\.position_ids",
)

_KEYS = {
    "features": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp_size": "intermediate_size",
    "vocabulary": "vocab_size",
    "max_length": "max_position_embeddings",
    "token_types": "type_vocab_size",
    "epsilon": "layer_norm_eps",
    "activation": "hidden_act",
}
_USUAL = {
    "features": 768,
    "layers": 12,
    "heads": 12,
    "mlp_size": 3072,
    "vocabulary": 30522,
    "max_length": 512,
    "token_types": 2,
    "epsilon": 1e-12,
    "activation": "gelu",
    "dropout": 0.0,
}
_SUPPORTED = {"hidden_act": ("gelu", "gelu_new", "relu"), "position_embedding_type": ("absolute",)}
_DISTILBERT_KEYS = {"features": "dim", "layers": "n_layers", "heads": "n_heads", "mlp_size": "hidden_dim"}
_DISTILBERT_KEYS |= {"activation": "activation"} | {name: _KEYS[name] for name in ("vocabulary", "max_length")}


class Encoder(Network):
    """Embeddings, post-norm blocks with attention in both directions, pooling, and the classifier."""

    vocabulary: int
    features: int
    layers: int
    heads: int
    mlp_size: int
    max_length: int
    token_types: int
    epsilon: float
    activation: Activation
    dropout: float
    pooling: Pooling
    pool: Callable[[Array], Array]
    first_position: int

    @nn.compact
    def encode(self, x: Array, mask: Array, is_training: bool) -> Array:
        tokens, types = (x[..., 0], x[..., 1]) if x.ndim == 3 and self.token_types else (x, jnp.zeros_like(x))
        check_tokens("a text encoder", tokens, self.max_length - self.first_position)
        is_token, norm = tokens >= 0, partial(LayerNorm, epsilon=self.epsilon)
        x = nn.Embed(self.vocabulary, self.features, name="embedding")(jnp.maximum(tokens, 0))
        positions = count_positions(is_token) + self.first_position
        x = x + nn.Embed(self.max_length, self.features, name="positions")(positions)
        if self.token_types:
            x = x + nn.Embed(self.token_types, self.features, name="token_types")(jnp.maximum(types, 0))
        x = nn.Dropout(self.dropout, deterministic=not is_training)(norm(name="norm")(x))
        block = partial(Block, partial(Attention, self.heads), self.mlp_size, norm, self.activation, True)
        for index in range(self.layers):
            x = block(dropout=self.dropout, name=f"block_{index}")(x, is_training, is_token)
        if self.pooling == "mean":
            weights = is_token.astype(jnp.promote_types(x.dtype, jnp.float32))
            mean = jnp.einsum("blf,bl->bf", x, weights) / jnp.maximum(weights.sum(1, keepdims=True), 1)
            return mean.astype(x.dtype)
        return self.pool(Dense(self.features, name="pooler")(take_first(x, is_token)))


class EncoderSizes(Sizes, total=False):
    """The sizes of encoders."""

    max_length: Count
    token_types: Count


def _encoder(
    family: Family, names: Naming, pool: Callable[[Array], Array], first_position: int = 0
) -> Callable[[Callable], Callable[..., Model]]:
    """A decorator that makes the factory of an encoder from a function that has its name and docstring."""

    def decorate(described: Callable) -> Callable[..., Model]:
        def factory(
            num_classes: NumClasses,
            *,
            pretrained: str | None = None,
            pooling: Pooling = "head",
            vocabulary: Count | None = None,
            **sizes: Unpack[EncoderSizes],
        ) -> Model:
            chosen = family.complete(pretrained, {"vocabulary": vocabulary, **sizes})
            own = chosen | {"activation": ACTIVATIONS[chosen["activation"]]}
            network = Encoder(num_classes, pooling=pooling, pool=pool, first_position=first_position, **own)
            return starting_from(pretrained, names, config=family.describe(chosen))(from_flax(network))

        factory.__doc__ = f"""{described.__doc__}

Args:
    num_classes: The number of classes, tags, ranks or targets.
    pretrained: A directory with config.json and weights, or a file of weights; see `read_state_dict`.
    pooling: "head" classifies the first token with the network's own head, "mean" the mean over all tokens.
    features: The width of the residual stream, a multiple of `heads`.
    layers: The number of blocks.
    heads: The number of attention heads per block.
    mlp_size: The number of hidden units of each block.
    vocabulary: The number of tokens (default None, that of config.json, or in a config that of the tokenizer).
    epsilon: The constant in norms.
    dropout: The dropout rate of embeddings and residual branches (default 0).
    max_length: The number of rows of position embeddings.
    token_types: The number of token types. Inputs [batch, length, 2] hold tokens and their types (default all 0).

Returns:
    A model for tokens [batch, length], in which -1 is padding.

Raises:
    InputError: Values are invalid or contradict config.json, or inputs are not tokens."""
        factory.__name__ = factory.__qualname__ = described.__name__
        factory.__module__ = described.__module__
        return validate_arguments(factory)

    return decorate


@_encoder(Family(_KEYS, _USUAL, _SUPPORTED | {"model_type": ("bert",)}), BERT_NAMES, nn.tanh)
def bert():
    """BERT, and sentence models with its layers, such as MiniLM (`pooling="mean"`).

    References:
        Devlin et al., BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding, NAACL 2019.
        Reimers and Gurevych, Sentence-BERT, EMNLP 2019.
    """


@_encoder(
    Family(
        _KEYS,
        _USUAL | {"vocabulary": 50265, "max_length": 514, "token_types": 1, "epsilon": 1e-5},
        _SUPPORTED | {"model_type": ("roberta",), "pad_token_id": (1,)},
    ),
    ROBERTA_NAMES,
    nn.tanh,
    first_position=2,
)
def roberta():
    """RoBERTa; positions begin at row 2 of their embeddings.

    References:
        Liu et al., RoBERTa: A Robustly Optimized BERT Pretraining Approach, 2019. arXiv:1907.11692
    """


@_encoder(
    Family(
        _DISTILBERT_KEYS,
        _USUAL | {"layers": 6, "token_types": 0},
        {"activation": _SUPPORTED["hidden_act"], "model_type": ("distilbert",)},
    ),
    DISTILBERT_NAMES,
    nn.relu,
)
def distilbert():
    """DistilBERT, without token types.

    References:
        Sanh et al., DistilBERT, a Distilled Version of BERT: Smaller, Faster, Cheaper and Lighter, 2019.
        arXiv:1910.01108
    """
