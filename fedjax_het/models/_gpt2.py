"""GPT-2.

Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
"""

from functools import partial
from typing import Unpack

from fedjax_het.models._attention import Attention, Block
from fedjax_het.models._decoder import make_decoder, name_layers
from fedjax_het.models._model import NumClasses
from fedjax_het.models._norms import LayerNorm
from fedjax_het.models._tokens import ACTIVATIONS, Family, Outputs, Sizes
from fedjax_het.types import Model
from fedjax_het.validation import Count, validate_arguments

GPT2_NAMES = name_layers(
    "transformer.",
    "h",
    {
        "norm_0": "ln_1",
        "attention/qkv": "attn.c_attn",
        "attention/out": "attn.c_proj",
        "norm_1": "ln_2",
        "dense_0": "mlp.c_fc",
        "dense_1": "mlp.c_proj",
    },
    {"embedding": "wte", "positions": "wpe", "norm": "ln_f"},
    untransposed=("block_#/attention/(qkv|out)", "block_#/dense_#"),
    ignored=r"(lm_head|score)\.weight|(transformer\.)?h\.\d+\.attn\.(masked_)?bias",
)

_GPT2 = Family(
    {
        "features": "n_embd",
        "layers": "n_layer",
        "heads": "n_head",
        "mlp_size": "n_inner",
        "vocabulary": "vocab_size",
        "max_length": "n_positions",
        "epsilon": "layer_norm_epsilon",
        "activation": "activation_function",
    },
    {
        **{"features": 768, "layers": 12, "heads": 12, "mlp_size": None, "vocabulary": 50257, "max_length": 1024},
        **{"epsilon": 1e-5, "activation": "gelu_new", "is_tied": True, "dropout": 0.0},
    },
    {
        "model_type": ("gpt2",),
        "activation_function": ("gelu_new", "gelu", "gelu_pytorch_tanh", "relu"),
        "tie_word_embeddings": (True,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
)


class Gpt2Sizes(Sizes, total=False):
    """The sizes of GPT-2."""

    max_length: Count


@validate_arguments
def gpt2(
    num_classes: NumClasses,
    *,
    pretrained: str | None = None,
    outputs: Outputs = "every",
    vocabulary: Count | None = None,
    **sizes: Unpack[Gpt2Sizes],
) -> Model:
    """GPT-2 on tokens [batch, length], in which -1 is padding, on either side.

    Args:
        num_classes: The number of classes, tags, ranks or targets.
        pretrained: A directory with config.json and weights, or a file of weights; see `read_state_dict`.
        outputs: "every" predicts the token after each position with the embeddings as the head (no leaf classifier);
            "last" classifies the sequence from its last token.
        features: The width of the residual stream, a multiple of `heads`.
        layers: The number of blocks.
        heads: The number of attention heads per block.
        mlp_size: The number of hidden units of each block (default 4 features).
        vocabulary: The number of tokens (default None, that of config.json, or in a config that of the tokenizer).
        epsilon: The constant in norms.
        dropout: The dropout rate of embeddings and residual branches (default 0).
        max_length: The number of position embeddings.

    Raises:
        InputError: Values are invalid or contradict config.json, or inputs are not tokens.

    References:
        Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
    """
    chosen = _GPT2.complete(pretrained, {"vocabulary": vocabulary, **sizes})
    norm = partial(LayerNorm, epsilon=chosen["epsilon"])
    attention = partial(Attention, chosen["heads"], is_causal=True, is_fused=True)
    hidden, activation = chosen["mlp_size"] or 4 * chosen["features"], ACTIVATIONS[chosen["activation"]]
    block = partial(Block, attention, hidden, activation=activation)
    positions, config = chosen["max_length"], _GPT2.describe(chosen)
    return make_decoder(num_classes, outputs, pretrained, GPT2_NAMES, block, norm, positions, chosen, config)
