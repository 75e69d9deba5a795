"""Llama, and the networks that have its layers.

Touvron et al., LLaMA: Open and Efficient Foundation Language Models, 2023. arXiv:2302.13971
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, Unpack

from fedjax_het.errors import InputError
from fedjax_het.models._attention import Attention, Block
from fedjax_het.models._decoder import Rotary, make_decoder, name_layers
from fedjax_het.models._model import NumClasses
from fedjax_het.models._norms import RMSNorm
from fedjax_het.models._tokens import Family, Outputs, Sizes
from fedjax_het.types import Model
from fedjax_het.validation import Count, Positive, validate_arguments

LLAMA_NAMES = name_layers(
    "model.",
    "layers",
    {
        "norm_0": "input_layernorm",
        **{f"attention/{name}": f"self_attn.{name[0]}_proj" for name in ("query", "key", "value", "out")},
        "norm_1": "post_attention_layernorm",
        "dense_gate": "mlp.gate_proj",
        "dense_0": "mlp.up_proj",
        "dense_1": "mlp.down_proj",
    },
    {"embedding": "embed_tokens", "norm": "norm"},
    ignored=r"(lm_head|score)\.weight|(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
)


_LLAMA = Family(
    {
        "features": "hidden_size",
        "layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_size": "head_dim",
        "mlp_size": "intermediate_size",
        "vocabulary": "vocab_size",
        "epsilon": "rms_norm_eps",
        "theta": "rope_theta|rope_parameters.rope_theta",
        "scaling": "rope_scaling|rope_parameters",
        "is_tied": "tie_word_embeddings",
        "kind": "model_type",
    },
    {
        **{"features": 576, "layers": 30, "heads": 9, "kv_heads": None, "mlp_size": 1536, "vocabulary": 49152},
        **{"epsilon": 1e-5, "theta": 10_000.0, "scaling": None, "is_tied": False, "kind": "llama"},
        "dropout": 0.0,
    },
    {
        "model_type": ("llama", "qwen2"),
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "mlp_bias": (False,),
        "use_sliding_window": (False,),
    },
)


class LlamaSizes(Sizes, total=False):
    """The sizes of Llama."""

    kv_heads: Count
    head_size: Count
    theta: Positive
    is_tied: bool
    kind: Literal["llama", "qwen2"]


@validate_arguments
def llama(
    num_classes: NumClasses,
    *,
    pretrained: str | None = None,
    outputs: Outputs = "every",
    vocabulary: Count | None = None,
    **sizes: Unpack[LlamaSizes],
) -> Model:
    """Llama, and Qwen2 and SmolLM, which have its layers, on tokens [batch, length]; -1 is padding, on either side.

    Args:
        num_classes: The number of classes, tags, ranks or targets.
        pretrained: A directory with config.json and weights, or a file of weights; see `read_state_dict`. Rotary
            frequencies are scaled as config.json says ("llama3").
        outputs: "every" predicts the token after each position; "last" classifies the sequence from its last token.
        features: The width of the residual stream.
        layers: The number of blocks.
        heads: The number of attention heads per block.
        mlp_size: The number of hidden units of each block.
        vocabulary: The number of tokens (default None, that of config.json, or in a config that of the tokenizer).
        epsilon: The constant in norms.
        dropout: The dropout rate of embeddings and residual branches (default 0).
        kv_heads: The number of key and value heads (default `heads`).
        head_size: The size of a head (default features / heads).
        theta: The base of rotary frequencies.
        is_tied: Whether the embeddings are the head of outputs="every"; there is no leaf classifier then.
        kind: "llama", or "qwen2" with biases of query, key and value.

    Raises:
        InputError: Values are invalid or contradict config.json, or inputs are not tokens.

    References:
        Touvron et al., LLaMA: Open and Efficient Foundation Language Models, 2023. arXiv:2302.13971. Yang et al., Qwen2
        Technical Report, 2024. arXiv:2407.10671. Su et al., RoFormer, 2021. arXiv:2104.09864
    """
    chosen = _LLAMA.complete(pretrained, {"vocabulary": vocabulary, **sizes})
    heads, kv_heads = chosen["heads"], chosen["kv_heads"] or chosen["heads"]
    if heads % kv_heads:
        raise InputError(f"heads: {heads} cannot be divided among {kv_heads} kv_heads. Give a multiple.")
    size = chosen.get("head_size") or chosen["features"] // heads
    norm, has_bias = partial(RMSNorm, epsilon=chosen["epsilon"]), chosen["kind"] == "qwen2"
    attention = partial(Attention, heads, kv_heads, size, True, use_bias=has_bias, use_output_bias=False)
    block = partial(Block, attention, chosen["mlp_size"], activation="swiglu", use_bias=False)
    positions = Rotary(chosen["theta"], size, _read_scaling(chosen["scaling"]))
    return make_decoder(
        num_classes, outputs, pretrained, LLAMA_NAMES, block, norm, positions, chosen, _LLAMA.describe(chosen)
    )


def _read_scaling(table: Mapping[str, Any] | None) -> tuple[float, ...] | None:
    if table is None:
        return None
    kind = table.get("rope_type", table.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise InputError(f"pretrained: config.json scales rotary positions by '{kind}'. Known: default, llama3.")
    keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return None if kind == "default" else tuple(float(table[key]) for key in keys)
