"""Small convolutional networks common in federated learning."""

from collections.abc import Sequence
from typing import Literal

from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.models._conv_impl import check_conv_impl
from fedjax_het.models._dense import Dense
from fedjax_het.models._layers import Conv, max_pool
from fedjax_het.models._model import Network, NumClasses, check_images, from_flax, narrow_layers, scale_widths
from fedjax_het.models._norms import NormKind, norm
from fedjax_het.types import Array, Model
from fedjax_het.validation import Count, Positive, validate_arguments

ConvPadding = Literal["SAME", "VALID"]


class CNN(Network):
    """Convolution, norm, ReLU and 2x2 max pooling for each entry of `channels`, dense layers, then the classifier."""

    channels: tuple[int, ...]
    hidden: tuple[int, ...]
    kernel: int
    padding: str
    norm: NormKind
    impl: str

    @nn.nowrap
    def narrowed(self, width: float) -> nn.Module:
        return self.clone(channels=narrow_layers(self.channels, width), hidden=narrow_layers(self.hidden, width))

    @nn.compact
    def encode(self, x: Array, mask: Array, is_training: bool) -> Array:
        self._check_images(x.shape)
        kernel = (self.kernel, self.kernel)
        for index, num_channels in enumerate(self.channels):
            conv = Conv(num_channels, kernel, padding=self.padding, impl=self.impl, name=f"conv_{index}")
            x = norm(self.norm, name=f"norm_{index}")(conv(x), mask, is_training)
            # Pooling first is equivalent, since ReLU and maximum commute, and leaves a quarter of the work.
            x = nn.relu(max_pool(x, 2))
        x = x.reshape(x.shape[0], -1)
        for index, num_units in enumerate(self.hidden):
            x = nn.relu(Dense(num_units, kernel_init=nn.initializers.he_normal(), name=f"dense_{index}")(x))
        return x

    def _check_images(self, shape: tuple[int, ...]) -> None:
        check_images("a CNN", shape)
        if self.kernel > 2 * max(shape[1:3]):
            raise InputError(
                f"kernel: its side is {self.kernel}, and images of {shape[1]}x{shape[2]} are smaller. Lower it."
            )
        size = 1
        for _ in self.channels:
            size = 2 * size + (self.kernel - 1 if self.padding == "VALID" else 0)
        if min(shape[1:3]) < size:
            raise InputError(
                f"images of {shape[1]}x{shape[2]} are too small for {len(self.channels)} convolutions of "
                f"{self.kernel}x{self.kernel} ({self.padding}) with pooling: they need at least {size}x{size}. "
                "Enlarge the images, or use a smaller kernel, fewer channels entries or padding='SAME'."
            )


@validate_arguments
def cnn(
    num_classes: NumClasses,
    channels: Sequence[Count] = (32, 64),
    hidden: Sequence[Count] = (512,),
    *,
    kernel: Count = 5,
    padding: ConvPadding = "SAME",
    norm: NormKind = "none",
    conv: str = "auto",
    width: Positive = 1.0,
) -> Model:
    """The two-layer network of FedAvg's MNIST experiments, on images [batch, height, width, channel].

    Args:
        num_classes: The number of classes, tags, ranks or targets.
        channels: The number of channels of each convolution.
        hidden: The number of units of each dense layer after the convolutions.
        kernel: The side length of the kernels.
        padding: "SAME" preserves the size, "VALID" does not pad.
        norm: The norm after each convolution, see `norm`.
        conv: The implementation of convolutions: "auto", "lax", "im2col" or "native".
        width: Multiplier of all entries of `channels` and `hidden`.

    Raises:
        InputError: Values are invalid, or images are too small for the pooling.

    References:
        McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
    """
    check_conv_impl(conv)
    if len(channels) == 0:
        raise InputError("channels: a CNN needs at least one convolution; for none, use an MLP.")
    channels, hidden = scale_widths("channels", channels, width), scale_widths("hidden", hidden, width)
    return from_flax(CNN(num_classes, channels, hidden, kernel, padding, norm, conv))


@validate_arguments
def lenet(
    num_classes: NumClasses,
    channels: Sequence[Count] = (6, 16),
    hidden: Sequence[Count] = (120, 84),
    *,
    kernel: Count = 5,
    padding: ConvPadding = "VALID",
    norm: NormKind = "none",
    conv: str = "auto",
    width: Positive = 1.0,
) -> Model:
    """The LeNet-like network of many CIFAR-10 experiments (including FedMGC's); arguments and errors as in `cnn`.

    References:
        LeCun et al., Gradient-Based Learning Applied to Document Recognition, Proceedings of the IEEE 1998.
    """
    return cnn(num_classes, channels, hidden, kernel=kernel, padding=padding, norm=norm, conv=conv, width=width)
