"""Densely connected networks with torchvision's layers, and HarmoFL's variant.

Huang, Liu, van der Maaten and Weinberger, Densely Connected Convolutional Networks, CVPR 2017. arXiv:1608.06993
"""

from typing import Unpack

import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.models._layers import Conv, NetworkParts, Stem, StemKind, avg_pool, image_network
from fedjax_het.models._model import Network, check_images, scale_widths
from fedjax_het.models._norms import NormKind, norm
from fedjax_het.models._pretrained import Naming
from fedjax_het.types import Array

DENSENET_NAMES = Naming(
    {
        "stem/conv": "features.conv0",
        "stem/norm": "features.norm0",
        "block_#_layer_#/conv_#": "features.denseblock<1+>.denselayer<2+>.conv<3+>",
        "block_#_layer_#/norm_#": "features.denseblock<1+>.denselayer<2+>.norm<3+>",
        "transition_#/conv": "features.transition<1+>.conv",
        "transition_#/norm": "features.transition<1+>.norm",
        "norm": "features.norm5",
        "classifier": "classifier",
    },
    former={r"(denselayer\d+\.(?:norm|conv))\.(\d)": r"\1\2"},
)
"""torchvision's names; HarmoFL's differ only in the norms, which have no leaves."""

_DEPTHS = (6, 12, 24, 16)
_STEM, _GROWTH, _BOTTLENECK = 64, 32, 128


class DenseLayer(nn.Module):
    """Norm, ReLU and convolution twice, 1x1 to `bottleneck` and 3x3 to `growth` channels, appended to the input."""

    growth: int
    bottleneck: int
    norm: NormKind
    impl: str

    @nn.compact
    def __call__(self, x: Array, mask: Array, is_training: bool) -> Array:
        y = x
        for index, (kernel, channels) in enumerate(((1, self.bottleneck), (3, self.growth))):
            y = nn.relu(norm(self.norm, name=f"norm_{index}")(y, mask, is_training))
            y = Conv(channels, kernel, use_bias=False, impl=self.impl, name=f"conv_{index}")(y)
        return jnp.concatenate([x, y], axis=-1)


class Transition(nn.Module):
    """Norm, ReLU, a 1x1 convolution to half the channels and 2x2 average pooling."""

    norm: NormKind
    impl: str

    @nn.compact
    def __call__(self, x: Array, mask: Array, is_training: bool) -> Array:
        x = nn.relu(norm(self.norm, name="norm")(x, mask, is_training))
        return avg_pool(Conv(x.shape[-1] // 2, 1, use_bias=False, impl=self.impl, name="conv")(x), 2)


class DenseNet(Network):
    """A stem, dense blocks with transitions between them, global average pooling, and the classifier."""

    depths: tuple[int, ...]  # dense layers of each block
    channels: tuple[int, ...]  # channels of the stem, growth per layer, and bottleneck channels
    edge: int  # zero padding after the first block
    stem: StemKind
    norm: NormKind
    impl: str

    @nn.compact
    def encode(self, x: Array, mask: Array, is_training: bool) -> Array:
        check_images("a DenseNet", x.shape)
        first, growth, bottleneck = self.channels
        x = Stem(first, self.stem, self.norm, self.impl, name="stem")(x, mask, is_training)
        for block, depth in enumerate(self.depths):
            if block:
                x = Transition(self.norm, self.impl, name=f"transition_{block - 1}")(x, mask, is_training)
            for index in range(depth):
                layer = DenseLayer(growth, bottleneck, self.norm, self.impl, name=f"block_{block}_layer_{index}")
                x = layer(x, mask, is_training)
            if not block:
                x = jnp.pad(x, ((0, 0), (self.edge, self.edge), (self.edge, self.edge), (0, 0)))
        return nn.relu(norm(self.norm, name="norm")(x, mask, is_training)).mean((1, 2))


def _densenet(edge: int, num_classes: int, width: float, **parts: Unpack[NetworkParts]) -> DenseNet:
    return DenseNet(num_classes, _DEPTHS, scale_widths("channels", (_STEM, _GROWTH, _BOTTLENECK), width), edge, **parts)


@image_network(DENSENET_NAMES)
def densenet121(num_classes: int, width: float, **parts: Unpack[NetworkParts]) -> DenseNet:
    """DenseNet-121: blocks of 6, 12, 24 and 16 dense layers; features [batch, 1024]."""
    return _densenet(0, num_classes, width, **parts)


@image_network(DENSENET_NAMES, norm="batch_stat")
def harmofl_densenet(num_classes: int, width: float, **parts: Unpack[NetworkParts]) -> DenseNet:
    """DenseNet-121 as HarmoFL's authors run it on Camelyon17.

    The maps after the first block are padded with two zeros per side, and norms have no parameters or statistics.
    HarmoFL prepends amplitude normalization.

    Jiang, Wang and Dou, HarmoFL, AAAI 2022; official code med-air/HarmoFL, nets/models.py.
    """
    return _densenet(2, num_classes, width, **parts)
