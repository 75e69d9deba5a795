"""The U-Net of HarmoFL's segmentation experiments.

Ronneberger, Fischer and Brox, U-Net: Convolutional Networks for Biomedical Image Segmentation, MICCAI 2015.
arXiv:1505.04597. Layers as in HarmoFL's code: med-air/HarmoFL, nets/models.py.
"""

from typing import Annotated

import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.models._conv_impl import check_conv_impl
from fedjax_het.models._layers import Conv, UpConv, max_pool
from fedjax_het.models._model import Network, NumClasses, check_images, from_flax, scale_widths
from fedjax_het.models._norms import NormKind, norm
from fedjax_het.models._pretrained import Naming
from fedjax_het.models._published import starting_from
from fedjax_het.types import Array, Model
from fedjax_het.validation import Positive, Range, validate_arguments

UNET_NAMES = Naming(
    {
        "encoder_#/conv_#": "encoder<1+>.enc<1+>_conv<2+>",
        "encoder_#/norm_#": "encoder<1+>.enc<1+>_bn<2+>",
        "bottleneck/conv_#": "bottleneck.bottleneck_conv<1+>",
        "bottleneck/norm_#": "bottleneck.bottleneck_bn<1+>",
        "up_#": "upconv<1+>",
        "decoder_#/conv_#": "decoder<1+>.dec<1+>_conv<2+>",
        "decoder_#/norm_#": "decoder<1+>.dec<1+>_bn<2+>",
        "classifier": "conv",
    },
    convolved=("classifier",),
)
"""HarmoFL's."""

_CHANNELS = (32, 64, 128, 256, 512)
Levels = Annotated[int, Range(1, len(_CHANNELS) - 1, is_whole=True)]


class Level(nn.Module):
    """Two 3x3 convolutions, each with its norm and ReLU."""

    channels: int
    norm: NormKind
    impl: str

    @nn.compact
    def __call__(self, x: Array, mask: Array, is_training: bool) -> Array:
        for index in range(2):
            x = Conv(self.channels, use_bias=False, impl=self.impl, name=f"conv_{index}")(x)
            x = nn.relu(norm(self.norm, name=f"norm_{index}")(x, mask, is_training))
        return x


class UNet(Network):
    """Levels that each halve the size, the bottleneck, and as many levels back with skip connections.

    The head acts on single pixels: features [batch, height, width, feature], logits [batch, height, width, class].
    """

    channels: tuple[int, ...]  # channels per level, from the first to the bottleneck
    norm: NormKind
    impl: str

    @nn.compact
    def encode(self, x: Array, mask: Array, is_training: bool) -> Array:
        *outer, innermost = self.channels
        self._check_size(x.shape, 2 ** len(outer))
        skipped = []
        for index, channels in enumerate(outer):
            skipped.append(Level(channels, self.norm, self.impl, name=f"encoder_{index}")(x, mask, is_training))
            x = max_pool(skipped[-1], 2)
        x = Level(innermost, self.norm, self.impl, name="bottleneck")(x, mask, is_training)
        for index, channels in reversed(list(enumerate(outer))):
            x = UpConv(channels, impl=self.impl, name=f"up_{index}")(x)
            x = jnp.concatenate([x, skipped[index]], axis=-1)
            x = Level(channels, self.norm, self.impl, name=f"decoder_{index}")(x, mask, is_training)
        return x

    def _check_size(self, shape: tuple[int, ...], multiple: int) -> None:
        check_images("a U-Net", shape)
        if shape[1] % multiple or shape[2] % multiple:
            raise InputError(
                f"images of {shape[1]}x{shape[2]}: a U-Net halves them {len(self.channels) - 1} times, so height and "
                f"width must be multiples of {multiple}. Resize or pad them."
            )


@validate_arguments
def unet(
    num_classes: NumClasses,
    *,
    norm: NormKind = "batch_stat",
    width: Positive = 1.0,
    levels: Levels = 4,
    conv: str = "auto",
    pretrained: str | None = None,
) -> Model:
    """A U-Net with 32, 64, 128, 256 channels and a bottleneck of 512, on images whose sides are multiples of 16.

    Args:
        num_classes: The number of classes, tags, ranks or targets.
        norm: The norm (default "batch_stat", as in HarmoFL), see `norm`.
        width: Multiplier of all numbers of channels.
        levels: The number of levels (default 4); the bottleneck is twice as wide as the last level, and sides are
            multiples of 2^levels.
        conv: The implementation of convolutions: "auto", "lax", "im2col" or "native".
        pretrained: A .safetensors or .npz file with the state dict of HarmoFL's network.

    Raises:
        InputError: Values are invalid.
    """
    check_conv_impl(conv)
    network = UNet(num_classes, scale_widths("channels", _CHANNELS[: levels + 1], width), norm, conv)
    return starting_from(pretrained, UNET_NAMES)(from_flax(network))
