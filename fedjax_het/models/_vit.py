"""Vision transformers with the layers of timm, DeiT and DINOv2.

Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021. arXiv:2010.11929
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.models._attention import Activation, Attention, Block
from fedjax_het.models._dense import Dense, add_bias, multiply, param
from fedjax_het.models._model import Network, NumClasses, check_images, from_flax
from fedjax_het.models._norms import LayerNorm
from fedjax_het.models._position_grids import Resampling, resample_positions
from fedjax_het.models._pretrained import Naming
from fedjax_het.models._published import starting_from
from fedjax_het.models._tokens import check_heads
from fedjax_het.models._vision_names import TIMM_NAMES, TOKENS, VIT_NAMES
from fedjax_het.models._weight_files import StateDict, check_config, complete_sizes
from fedjax_het.types import Array, Model
from fedjax_het.validation import Count, CountOrZero, FractionBelowOne, Positive, validate_arguments

Pooling = Literal["token", "avg", "token_and_mean", "pooler"]
_SIZES = {"tiny": (192, 12), "small": (384, 12), "base": (768, 12), "large": (1024, 24)}
"""(features, layers) by name."""
_HEAD_SIZE = 64
_KEYS = {
    "features": "hidden_size|num_features",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp_size": "intermediate_size",
    "mlp_ratio": "mlp_ratio",
    "patch": "patch_size",
    "epsilon": "layer_norm_eps",
    "layer_scale": "layerscale_value",
    "registers": "num_register_tokens",
}
_USUAL = {
    "heads": None,
    "mlp_size": None,
    "mlp_ratio": 4,
    "patch": 16,
    "epsilon": 1e-6,
    "layer_scale": None,
    "registers": 0,
}
_SUPPORTED = {
    "model_type": ("vit", "dinov2", "dinov2_with_registers"),
    "hidden_act": ("gelu",),
    "qkv_bias": (True,),
    "use_swiglu_ffn": (False,),
}


class Patches(nn.Module):
    """A convolution of non-overlapping windows, [batch, height, width, channel] -> [batch, rows, columns, feature].

    kernel [size, size, channel, feature] and bias [feature], as of `Conv`.
    """

    features: int
    size: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        size, (batch, height, width, channels) = self.size, x.shape
        kernel = param(self, "kernel", nn.initializers.lecun_normal(), (size, size, channels, self.features))
        bias = param(self, "bias", nn.initializers.zeros, (self.features,)) if self.use_bias else None
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias)
        x = x.reshape(batch, height // size, size, width // size, size, channels).swapaxes(2, 3)
        y = multiply(x.reshape(*x.shape[:3], -1), kernel.reshape(-1, self.features))
        return y if bias is None else add_bias(y, bias)


class TwoHeads(Dense):
    """The mean of the logits of two tokens, inputs [batch, 2 feature], by a classifier for each."""

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        tokens = jnp.split(inputs, 2, axis=-1)
        first, second = (Dense(self.features, name=name) for name in ("class", "distillation"))
        return (first(tokens[0]) + second(tokens[1])) / 2


class VisionTransformer(Network):
    """Patches with positions after other tokens, pre-norm blocks, pooling, and the classifier.

    Leaves besides those of layers: class_token, distillation_token [feature], registers [register, feature] and
    positions [tokens + patches, feature]. Registers have no positions.
    """

    features: int
    layers: int
    heads: int
    mlp_size: int
    patch: int
    epsilon: float
    layer_scale: float | None = None
    registers: int = 0
    pooling: Pooling = "token"
    is_distilled: bool = False
    is_fused: bool = False
    activation: Activation = "gelu"
    dropout: float = 0.0
    is_normed_first: bool = False
    use_patch_bias: bool = True

    def setup(self):
        self.classifier = (TwoHeads if self.is_distilled else Dense)(self.num_classes)

    @nn.compact
    def encode(self, x: Array, mask: Array, is_training: bool) -> Array:
        check_patches(x, self.patch)
        x = self._embed(x)
        if self.is_normed_first:
            x = self.norm(name="norm_first")(x)
        x = nn.Dropout(self.dropout, deterministic=not is_training)(x)
        attention = partial(Attention, self.heads, is_fused=self.is_fused)
        block = partial(Block, attention, self.mlp_size, self.norm, self.activation, layer_scale=self.layer_scale)
        is_token_alone = self.pooling in ("token", "pooler") and not self.is_distilled
        for index in range(self.layers):
            num_outputs = 1 if is_token_alone and index == self.layers - 1 else None
            x = block(dropout=self.dropout, name=f"block_{index}")(x, is_training, num_outputs=num_outputs)
        return self.pool(x)

    def pool(self, x: Array, pooling: Pooling | Literal["patches"] | None = None) -> Array:
        """The features of the tokens [batch, token, feature], or "patches" [batch, patch, feature] without pooling."""
        num_tokens, pooling = 1 + self.is_distilled, pooling or self.pooling
        if pooling == "avg":
            return self.norm(name="fc_norm")(x[:, num_tokens + self.registers :].mean(axis=1))
        x = self.norm(name="norm")(x)
        first, patches = x[:, :num_tokens].reshape(len(x), -1), x[:, num_tokens + self.registers :]
        if pooling == "patches":
            return patches
        if pooling == "token_and_mean":
            return jnp.concatenate([x[:, 0], patches.mean(axis=1)], axis=-1)
        return nn.tanh(Dense(self.features, name="pooler")(first)) if pooling == "pooler" else first

    @property
    def norm(self) -> Callable[..., LayerNorm]:
        return partial(LayerNorm, self.epsilon)

    def _embed(self, x: Array) -> Array:
        """[batch, token, feature]"""
        patches = Patches(self.features, self.patch, self.use_patch_bias, name="patches")(x)
        patches = patches.reshape(len(x), -1, self.features)
        names = TOKENS[: 1 + self.is_distilled]
        init, shape = nn.initializers.normal(0.02), (self.features,)
        tokens = jnp.stack([param(self, name, init, shape) for name in names])
        positions = param(self, "positions", init, (len(names) + patches.shape[1], self.features))
        tokens = jnp.broadcast_to(tokens.astype(patches.dtype), (len(x), *tokens.shape))
        x = jnp.concatenate([tokens, patches], axis=1) + positions.astype(patches.dtype)
        if not self.registers:
            return x
        registers = param(self, "registers", init, (self.registers, self.features)).astype(x.dtype)
        registers = jnp.broadcast_to(registers, (len(x), *registers.shape))
        return jnp.concatenate([x[:, : len(names)], registers, x[:, len(names) :]], axis=1)


def check_patches(images: Array, patch: int) -> None:
    """Raise InputError unless images can be cut into patches."""
    check_images("a vision transformer", images.shape)
    if any(size % patch for size in images.shape[1:3]):
        raise InputError(
            f"patch: images of {images.shape[1]}x{images.shape[2]} cannot be cut into patches of {patch}x{patch}. "
            "Resize the images to a multiple, or take another patch."
        )


def fit_positions(
    state: StateDict, naming: Naming, inputs: Array, patch: int, num_tokens: int, resampling: Resampling
) -> StateDict:
    """The state dict with positions for the patches of these images."""
    key, patches = naming.layers["positions"], (inputs.shape[1] // patch, inputs.shape[2] // patch)
    if key not in state:
        return state
    positions = state[key].reshape(-1, state[key].shape[-1])
    if num_tokens == 1 and round(len(positions) ** 0.5) ** 2 == len(positions):  # timm adds that of the class token
        positions = np.concatenate([np.zeros_like(positions[:1]), positions])
    positions = resample_positions(positions, num_tokens, patches, resampling)
    return {**state, key: positions.reshape(*state[key].shape[:-2], *positions.shape)}


@validate_arguments
def vit(
    num_classes: NumClasses,
    size: Literal["tiny", "small", "base", "large"] = "tiny",
    *,
    pretrained: str | None = None,
    features: Count | None = None,
    layers: Count | None = None,
    heads: Count | None = None,
    mlp_size: Count | None = None,
    patch: Count | None = None,
    epsilon: Positive | None = None,
    layer_scale: Positive | None = None,
    registers: CountOrZero | None = None,
    pooling: Pooling = "token",
    distilled: bool = False,
    fused_qkv: bool = False,
    resampling: Resampling | None = None,
    dropout: FractionBelowOne = 0.0,
) -> Model:
    """A vision transformer: ViT, DeiT or DINOv2.

    Positions in the pretrained file are resampled for images of another size. Sizes follow from the config.json beside
    the weights, or else from `size`.

    Args:
        num_classes: The number of classes, tags, ranks or targets.
        size: "tiny" (192 features, 12 layers), "small" (384, 12), "base" (768, 12) or "large" (1024, 24).
        pretrained: A directory with config.json and weights, or a file of weights, with the names of timm (also DeiT's
            and DINOv2's own files) or of Hugging Face's ViT and DINOv2; see `read_state_dict`.
        features: The width of the residual stream.
        layers: The number of blocks.
        heads: The number of attention heads per block (default: one per 64 features).
        mlp_size: The number of hidden units of each block (default: four times the features).
        patch: Height and width of a patch (default 16).
        epsilon: The constant in norms (default 1e-6).
        layer_scale: The initial value of the scales of residual branches, as in DINOv2 (default: no scales).
        registers: The number of tokens without a position (default 0).
        pooling: The features: "token" is the class token; "avg" the mean over patches, with a norm after it; "pooler" a
            dense layer and tanh of the class token; "token_and_mean" the class token beside the mean over patches.
        distilled: Whether there is a second token with its own classifier (DeiT). The logits are the mean of both, in
            training, too, where DeiT's code trains both separately. Only with pooling="token".
        fused_qkv: Whether query, key and value are a single layer, qkv. Outputs are equal; low-rank adapters then share
            A. By default they are the layers query, key and value.
        resampling: The code that positions are resampled as, see `resample_positions` (default: that of the file).
        dropout: The dropout rate of embeddings and residual branches.

    Returns:
        A model for images [batch, height, width, channel].

    Raises:
        InputError: Values are invalid or contradict config.json, or images cannot be cut into patches.

    References:
        Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021. Touvron et al., Training Data-efficient Image
        Transformers & Distillation through Attention (DeiT), ICML 2021. Oquab et al., DINOv2: Learning Robust Visual
        Features without Supervision, TMLR 2024. Darcet et al., Vision Transformers Need Registers, ICLR 2024.
    """
    given = {"features": features, "layers": layers, "heads": heads, "mlp_size": mlp_size, "patch": patch}
    given |= {"epsilon": epsilon, "layer_scale": layer_scale, "registers": registers}
    usual = _USUAL | dict(zip(("features", "layers"), _SIZES[size], strict=True))
    if pretrained is not None:
        check_config(pretrained, _SUPPORTED)
    sizes = complete_sizes(pretrained, _KEYS, usual, given)
    ratio = sizes.pop("mlp_ratio")
    sizes["mlp_size"] = sizes["mlp_size"] or int(ratio * sizes["features"])
    sizes["heads"] = sizes["heads"] or max(1, sizes["features"] // _HEAD_SIZE)
    check_heads(sizes["features"], sizes["heads"])
    if distilled and pooling != "token":
        raise InputError(f"pooling: a distilled network classifies its two tokens, not '{pooling}'. Omit pooling.")
    network = VisionTransformer(
        num_classes, pooling=pooling, is_distilled=distilled, is_fused=fused_qkv, dropout=dropout, **sizes
    )

    def fit(state: StateDict, naming: Naming, inputs: Array) -> StateDict:
        is_plain = naming is not TIMM_NAMES and not sizes["registers"]
        method = resampling or ("huggingface" if is_plain else "timm")
        return fit_positions(state, naming, inputs, sizes["patch"], 1 + distilled, method)

    return starting_from(pretrained, VIT_NAMES, fit)(from_flax(network))
