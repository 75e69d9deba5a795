"""The names of vision transformers in published files."""

from collections.abc import Mapping
from typing import Any

from fedjax_het.models._pretrained import Naming

_PARTS = ("query", "key", "value")
TOKENS = ("class_token", "distillation_token", "registers")


def _name_layers(layers: Mapping[str, str], block: str, inner: Mapping[str, str], **options: Any) -> Naming:
    blocks = {
        f"block_#/{ours}": "&".join(f"{block}.<1>.{name}" for name in theirs.split("&"))
        for ours, theirs in inner.items()
    }
    return Naming({**layers, **blocks}, batched=(*TOKENS, "positions"), **options)


def split_outputs(name: str) -> dict[str, str]:
    """The names of query, key and value in a file where they are one layer."""
    return {f"attention/{part}": f"{name}@{index}/3" for index, part in enumerate(_PARTS)}


def _name_published(prefix: str, inner: Mapping[str, str], in_memory: Mapping[str, str], **options: Any) -> Naming:
    """Hugging Face's names."""
    own = {
        "class_token": "embeddings.cls_token",
        "registers": "embeddings.register_tokens",
        "positions": "embeddings.position_embeddings",
        "patches": "embeddings.patch_embeddings.projection",
        "norm": "layernorm",
        "pooler": "pooler.dense",
    }
    parts = [f"attention.attention.{part}" for part in _PARTS]
    layers = {f"attention/{part}": name for part, name in zip(_PARTS, parts, strict=True)}
    layers |= {"attention/qkv": "&".join(parts), "attention/out": "attention.output.dense"}
    moved = {rf"\.attention\.attention\.{part}\b": f".attention.{part[0]}_proj" for part in _PARTS}
    moved |= {r"\.attention\.output\.dense\b": ".attention.o_proj", **in_memory}
    return _name_layers(
        {ours: prefix + theirs for ours, theirs in own.items()} | {"classifier": "classifier"},
        f"{prefix}encoder.layer",
        {**layers, **inner},
        prefix=prefix,
        optional=("pooler",),
        ignored=rf"({prefix})?(pooler\..*|embeddings\.mask_token)",
        in_memory=moved,
        **options,
    )


TIMM_NAMES = _name_layers(
    {
        "class_token": "cls_token",
        "distillation_token": "dist_token",
        "registers": "register_tokens",
        "positions": "pos_embed",
        "patches": "patch_embed.proj",
        "norm": "norm",
        "fc_norm": "fc_norm",
        "classifier": "head",
        "classifier/class": "head",
        "classifier/distillation": "head_dist",
    },
    "blocks",
    {
        "norm_0": "norm1",
        "attention/qkv": "attn.qkv",
        **split_outputs("attn.qkv"),
        "attention/out": "attn.proj",
        "layer_scale_0": "ls1.gamma",
        "norm_1": "norm2",
        "dense_0": "mlp.fc1",
        "dense_1": "mlp.fc2",
        "layer_scale_1": "ls2.gamma",
    },
    former={"^reg_token$": "register_tokens"},
    ignored="mask_token",
)
"""timm's, which DeiT's and DINOv2's own files have, too."""
_HF_VIT_NAMES = _name_published(
    "vit.",
    {
        "norm_0": "layernorm_before",
        "norm_1": "layernorm_after",
        "dense_0": "intermediate.dense",
        "dense_1": "output.dense",
    },
    {
        r"^vit\.encoder\.layer\.": "vit.layers.",
        r"\.intermediate\.dense\b": ".mlp.fc1",
        r"\.output\.dense\b": ".mlp.fc2",
    },
)
_HF_DINOV2_NAMES = _name_published(
    "dinov2.",
    {
        "norm_0": "norm1",
        "norm_1": "norm2",
        "dense_0": "mlp.fc1",
        "dense_1": "mlp.fc2",
        "layer_scale_0": "layer_scale1.lambda1",
        "layer_scale_1": "layer_scale2.lambda1",
    },
    {},
    former={r"^dinov2_with_registers\.": "dinov2."},
)
VIT_NAMES = (TIMM_NAMES, _HF_VIT_NAMES, _HF_DINOV2_NAMES)

_CLIP_IGNORED = r"(vision|text)_model\.embeddings\.position_ids|input_resolution|context_length|vocab_size"


def _name_towers(vision: str, text: str, inner: Mapping[str, str], own: Mapping[str, str], **options: Any) -> Naming:
    """The names of an image and a text tower, whose blocks have the same layers."""
    towers = (("", vision), ("text/", text))
    blocks = {
        f"{ours}block_#/{path}": f"{theirs}.<1>.{name}" for ours, theirs in towers for path, name in inner.items()
    }
    return Naming({**blocks, **own, "logit_scale": "logit_scale"}, ignored=_CLIP_IGNORED, **options)


_HF_CLIP_NAMES = _name_towers(
    "vision_model.encoder.layers",
    "text_model.encoder.layers",
    {
        "norm_0": "layer_norm1",
        **{f"attention/{part}": f"self_attn.{part[0]}_proj" for part in _PARTS},
        "attention/out": "self_attn.out_proj",
        "norm_1": "layer_norm2",
        "dense_0": "mlp.fc1",
        "dense_1": "mlp.fc2",
    },
    {
        "class_token": "vision_model.embeddings.class_embedding",
        "positions": "vision_model.embeddings.position_embedding.weight",
        "patches": "vision_model.embeddings.patch_embedding",
        "norm_first": "vision_model.pre_layrnorm",
        "norm": "vision_model.post_layernorm",
        "projection": "visual_projection",
        "text/embedding": "text_model.embeddings.token_embedding",
        "text/positions": "text_model.embeddings.position_embedding.weight",
        "text/norm": "text_model.final_layer_norm",
        "text/projection": "text_projection",
    },
)
_OPENAI_CLIP_NAMES = _name_towers(
    "visual.transformer.resblocks",
    "transformer.resblocks",
    {
        "norm_0": "ln_1",
        **{
            f"attention/{part}/{leaf}": f"attn.in_proj_{name}@{index}/3"
            for index, part in enumerate(_PARTS)
            for leaf, name in (("kernel", "weight"), ("bias", "bias"))
        },
        "attention/out": "attn.out_proj",
        "norm_1": "ln_2",
        "dense_0": "mlp.c_fc",
        "dense_1": "mlp.c_proj",
    },
    {
        "class_token": "visual.class_embedding",
        "positions": "visual.positional_embedding",
        "patches": "visual.conv1",
        "norm_first": "visual.ln_pre",
        "norm": "visual.ln_post",
        "projection/kernel": "visual.proj",
        "text/embedding": "token_embedding",
        "text/positions": "positional_embedding",
        "text/norm": "ln_final",
        "text/projection/kernel": "text_projection",
    },
    untransposed=("projection", "text/projection"),
)
CLIP_NAMES = (_HF_CLIP_NAMES, _OPENAI_CLIP_NAMES)
