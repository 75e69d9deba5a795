"""What stands in front of a residual or densely connected network."""

from flax import linen as nn

from fedjax_het.errors import InputError, nearest
from fedjax_het.models.layers import Conv
from fedjax_het.models.norms import norm
from fedjax_het.models.pooling import max_pool
from fedjax_het.types import Array

STEMS = ("imagenet", "small")


class Stem(nn.Module):
    """Convolution, norm and ReLU.

    kind: "imagenet" is a 7x7 convolution and a 3x3 maximum, each of stride 2, so that a quarter of each side is left.
    "small" is a 3x3 convolution of stride 1 that keeps the size, for images of 32 and 64 pixels.
    """

    features: int
    kind: str
    norm: str
    lowering: str

    @nn.compact
    def __call__(self, x: Array, mask: Array, is_training: bool) -> Array:
        is_large = self.kind == "imagenet"
        kernel, strides = (7, 2) if is_large else (3, 1)
        conv = Conv(self.features, kernel, strides, kernel // 2, use_bias=False, lowering=self.lowering, name="conv")
        x = norm(self.norm, name="norm")(conv(x), mask, is_training)
        # Pooled first, because ReLU and maximum commute and a quarter is left to do.
        return nn.relu(max_pool(x, 3, 2, 1) if is_large else x)


def check_stem(kind: str) -> None:
    if kind not in STEMS:
        raise InputError(f"stem: no kind '{kind}'. {nearest(str(kind), STEMS)}")
