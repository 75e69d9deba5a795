"""EfficientNet-Lite0.

Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, ICML 2019. arXiv:1905.11946
"""

from functools import partial, reduce
from typing import Unpack

import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.models._dense import param
from fedjax_het.models._layers import Conv, NetworkParts, StemKind, image_network, select_entries, to_pads
from fedjax_het.models._model import Network, check_images, scale_widths
from fedjax_het.models._norms import NormKind, norm
from fedjax_het.models._pretrained import Naming
from fedjax_het.types import Array

_CHANNELS = (32, 16, 24, 40, 80, 112, 192, 320, 1280)  # of the stem, the stages, and the last convolution
_STAGES = ((1, 3, 1, 1), (2, 3, 2, 6), (2, 5, 2, 6), (3, 3, 2, 6), (3, 5, 1, 6), (4, 5, 2, 6), (1, 3, 1, 6))
"""(blocks, kernel, strides of the first block, expansion) of each stage."""
_BLOCKS = [
    (f"stage_{stage}_block_{index}", stage, kernel, 1 if index else strides, expansion)
    for stage, (depth, kernel, strides, expansion) in enumerate(_STAGES)
    for index in range(depth)
]
_LAYERS = {
    **{"conv_expand": "_expand_conv", "norm_expand": "_bn0", "conv_depthwise": "_depthwise_conv"},
    **{"norm_depthwise": "_bn1", "conv_project": "_project_conv", "norm_project": "_bn2"},
}
EFFICIENTNET_NAMES = Naming(
    {
        **{"conv_stem": "_conv_stem", "norm_stem": "_bn0", "conv_last": "_conv_head", "norm_last": "_bn1"},
        **{
            f"{block}/{ours}": f"_blocks.{number}.{theirs}"
            for number, (block, *_) in enumerate(_BLOCKS)
            for ours, theirs in _LAYERS.items()
        },
        "classifier": "_fc",
    }
)
"""Those of efficientnet_lite_pytorch."""

_norm = partial(norm, epsilon=1e-3, momentum=0.99)


class DepthwiseConv(nn.Module):
    """A convolution of each channel by itself, with padding "SAME"; kernel [height, width, 1, channel].

    A sum over the entries of the kernel, which is elementwise also if every client has its own kernel.
    """

    kernel_size: int
    strides: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        window, strides = (self.kernel_size,) * 2, (self.strides,) * 2
        init = nn.initializers.variance_scaling(2.0, "fan_in", "truncated_normal", in_axis=(0, 1), out_axis=-1)
        kernel = param(self, "kernel", init, (*window, 1, x.shape[-1]))
        pads = to_pads("convolution", x, window, strides, "SAME")
        x, kernel = nn.dtypes.promote_dtype(x, kernel)
        exact = jnp.promote_types(x.dtype, jnp.float32)
        entries = select_entries(jnp.pad(x.astype(exact), ((0, 0), *pads, (0, 0))), window, strides)
        weights = kernel.astype(exact).reshape(-1, x.shape[-1])
        return reduce(jnp.add, (entry * weight for entry, weight in zip(entries, weights, strict=True))).astype(x.dtype)


class InvertedResidual(nn.Module):
    """1x1 expansion, depthwise convolution and 1x1 projection; the input is added if its shape is the output's."""

    channels: int
    kernel_size: int
    strides: int
    expansion: int
    norm: NormKind
    impl: str

    @nn.compact
    def __call__(self, x: Array, mask: Array, is_training: bool) -> Array:
        conv = partial(Conv, kernel_size=1, use_bias=False, impl=self.impl)
        y = x
        if self.expansion != 1:
            y = conv(self.expansion * x.shape[-1], name="conv_expand")(y)
            y = nn.relu6(_norm(self.norm, name="norm_expand")(y, mask, is_training))
        y = DepthwiseConv(self.kernel_size, self.strides, name="conv_depthwise")(y)
        y = nn.relu6(_norm(self.norm, name="norm_depthwise")(y, mask, is_training))
        y = conv(self.channels, name="conv_project")(y)
        y = _norm(self.norm, name="norm_project")(y, mask, is_training)
        return x + y if x.shape == y.shape else y


class EfficientNet(Network):
    """A 3x3 convolution, stages of inverted residuals, a 1x1 convolution, average pooling, and the classifier."""

    channels: tuple[int, ...]
    stem: StemKind
    norm: NormKind
    impl: str

    @nn.compact
    def encode(self, x: Array, mask: Array, is_training: bool) -> Array:
        check_images("EfficientNet", x.shape)
        first, *stages, last = self.channels
        conv = partial(Conv, use_bias=False, impl=self.impl)
        x = conv(first, 3, 2 if self.stem == "imagenet" else 1, name="conv_stem")(x)
        x = nn.relu6(_norm(self.norm, name="norm_stem")(x, mask, is_training))
        for name, stage, kernel, strides, expansion in _BLOCKS:
            block = InvertedResidual(stages[stage], kernel, strides, expansion, self.norm, self.impl, name=name)
            x = block(x, mask, is_training)
        x = nn.relu6(_norm(self.norm, name="norm_last")(conv(last, 1, name="conv_last")(x), mask, is_training))
        return x.mean((1, 2))


@image_network(EFFICIENTNET_NAMES)
def efficientnet_lite0(num_classes: int, width: float, **parts: Unpack[NetworkParts]) -> EfficientNet:
    """EfficientNet-Lite0: sixteen inverted residuals with ReLU6; features [batch, 1280].

    Convolutions are padded as in TensorFlow ("SAME"). Batch norms have epsilon 1e-3 and momentum 0.99. Neither dropout
    nor stochastic depth is applied.
    """
    return EfficientNet(num_classes, scale_widths("channels", _CHANNELS, width), **parts)
