"""Residual networks with torchvision's layers.

He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, CVPR 2016. arXiv:1512.03385
"""

from typing import Unpack

from flax import linen as nn

from fedjax_het.models._layers import Conv, NetworkParts, Stem, StemKind, image_network
from fedjax_het.models._model import Network, check_images, narrow_layers, scale_widths
from fedjax_het.models._norms import NormKind, norm
from fedjax_het.models._pretrained import Naming
from fedjax_het.types import Array

RESNET_NAMES = Naming(
    {
        "stem/conv": "conv1",
        "stem/norm": "bn1",
        "stage_#_block_#/conv_#": "layer<1+>.<2>.conv<3+>",
        "stage_#_block_#/norm_#": "layer<1+>.<2>.bn<3+>",
        "stage_#_block_#/conv_shortcut": "layer<1+>.<2>.downsample.0",
        "stage_#_block_#/norm_shortcut": "layer<1+>.<2>.downsample.1",
        "classifier": "fc",
    }
)
"""torchvision's."""

_CHANNELS = (64, 128, 256, 512)
Convolution = tuple[int, int, int]
"""(kernel, channels, strides)."""


class Block(nn.Module):
    """x -> relu(f(x) + shortcut(x)).

    f: the convolutions, each with its norm, ReLU between them. shortcut: the identity, or a 1x1 convolution with norm
    if f changes the size or the number of channels.
    """

    convolutions: tuple[Convolution, ...]
    norm: NormKind
    impl: str

    @nn.compact
    def __call__(self, x: Array, mask: Array, is_training: bool) -> Array:
        def normed(x: Array, convolution: Convolution, name: str) -> Array:
            kernel, channels, strides = convolution
            conv = Conv(channels, kernel, strides, kernel // 2, use_bias=False, impl=self.impl, name=f"conv_{name}")
            return norm(self.norm, name=f"norm_{name}")(conv(x), mask, is_training)

        y = normed(x, self.convolutions[0], "0")
        for index, convolution in enumerate(self.convolutions[1:], start=1):
            y = normed(nn.relu(y), convolution, str(index))
        strides = max(strides for *_, strides in self.convolutions)
        if strides > 1 or x.shape[-1] != y.shape[-1]:
            x = normed(x, (1, y.shape[-1], strides), "shortcut")
        return nn.relu(x + y)


class ResNet(Network):
    """A stem, stages of blocks (each after the first halves the size), global average pooling, and the classifier."""

    depths: tuple[int, ...]  # blocks of each stage
    channels: tuple[int, ...]  # of each stage
    is_bottleneck: bool
    stem: StemKind
    norm: NormKind
    impl: str

    @nn.nowrap
    def narrowed(self, width: float) -> nn.Module:
        return self.clone(channels=narrow_layers(self.channels, width))

    @nn.compact
    def encode(self, x: Array, mask: Array, is_training: bool) -> Array:
        check_images("a ResNet", x.shape)
        x = Stem(self.channels[0], self.stem, self.norm, self.impl, name="stem")(x, mask, is_training)
        for stage, (depth, channels) in enumerate(zip(self.depths, self.channels, strict=True)):
            for index in range(depth):
                convolutions = self._convolutions(channels, strides=2 if stage and not index else 1)
                block = Block(convolutions, self.norm, self.impl, name=f"stage_{stage}_block_{index}")
                x = block(x, mask, is_training)
        return x.mean((1, 2))

    def _convolutions(self, channels: int, strides: int) -> tuple[Convolution, ...]:
        if self.is_bottleneck:
            return (1, channels, 1), (3, channels, strides), (1, 4 * channels, 1)
        return (3, channels, strides), (3, channels, 1)


def _resnet(
    depths: tuple[int, ...], is_bottleneck: bool, num_classes: int, width: float, **parts: Unpack[NetworkParts]
) -> ResNet:
    return ResNet(num_classes, depths, scale_widths("channels", _CHANNELS, width), is_bottleneck, **parts)


@image_network(RESNET_NAMES)
def resnet18(num_classes: int, width: float, **parts: Unpack[NetworkParts]) -> ResNet:
    """ResNet-18: eight blocks of two 3x3 convolutions; features [batch, 512]."""
    return _resnet((2, 2, 2, 2), False, num_classes, width, **parts)


@image_network(RESNET_NAMES)
def resnet50(num_classes: int, width: float, **parts: Unpack[NetworkParts]) -> ResNet:
    """ResNet-50: sixteen blocks 1x1, 3x3, 1x1; features [batch, 2048]."""
    return _resnet((3, 4, 6, 3), True, num_classes, width, **parts)
