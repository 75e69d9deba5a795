"""Normalization layers; all are called as ``norm(x, mask, is_training)`` on x [batch, ..., channel]."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from fedjax_het.models._dense import param
from fedjax_het.models._native import batch_norm
from fedjax_het.types import Array
from fedjax_het.validation import Fraction, PositiveFraction, validate_arguments


class BatchNorm(nn.BatchNorm):
    """Batch normalization that ignores padding, with PyTorch's running statistics.

        y = scale (x - m) / sqrt(v + epsilon) + bias
        mean <- momentum mean + (1 - momentum) m,   var <- momentum var + (1 - momentum) v n / (n - 1)

    m and v are the mean and the biased variance over the n entries of a channel (examples times positions) whose
    `mask` [batch] is 1; in evaluation, the running statistics. A batch of only padding does not change the running
    statistics; a single entry, which PyTorch rejects, has variance 0.

    momentum: The weight of the old statistics, 0.9 (in PyTorch's convention 0.1).
    is_tracking: False keeps no running statistics and uses those of the batch in evaluation too. None: as True if
        the variables have running statistics, else as False.
    The base class's settings for reductions and axes are ignored: channels come last.
    Leaves: params scale, bias [channel]; batch_stats mean, var [channel].
    """

    momentum: float = 0.9
    is_tracking: bool | None = True

    @nn.compact
    def __call__(self, x: Array, mask: Array, is_training: bool) -> Array:
        shape = x.shape[-1:]
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        is_example, x_kind = mask != 0, x.dtype
        x = x.astype(dtype)
        has_statistics = self.has_variable("batch_stats", "mean") if self.is_tracking is None else self.is_tracking
        scale, bias = jnp.ones(shape, dtype), jnp.zeros(shape, dtype)
        if self.use_scale:
            scale = param(self, "scale", self.scale_init, shape, self.param_dtype)
        if self.use_bias:
            bias = param(self, "bias", self.bias_init, shape, self.param_dtype)
        if not has_statistics:
            y, _, _ = batch_norm.normalize(x, is_example, scale, bias, self.epsilon)
        else:
            running_mean = self.variable("batch_stats", "mean", jnp.zeros, shape, self.param_dtype)
            running_var = self.variable("batch_stats", "var", jnp.ones, shape, self.param_dtype)
            if is_training:
                y, mean, var = batch_norm.normalize(x, is_example, scale, bias, self.epsilon)
                count = jnp.sum(is_example, dtype=dtype) * math.prod(x.shape[1:-1])
                self._track(running_mean, mean, count)
                self._track(running_var, var * count / jnp.maximum(count - 1, 1), count)
            else:
                y = (x - running_mean.value) * lax.rsqrt(running_var.value + self.epsilon) * scale + bias
        return y.astype(x_kind)

    def _track(self, running: nn.Variable, value: Array, count: Array) -> None:
        old = running.value
        new = self.momentum * old + (1 - self.momentum) * lax.stop_gradient(value)
        running.value = jnp.where(count > 0, new, old).astype(old.dtype)


class StaticBatchNorm(BatchNorm):
    """Static batch normalization: statistics of the batch in training, and fixed ones in the evaluation of a model.

    The variables of a run have no statistics; an evaluation adds them, see `engine.evaluation.norm_statistics`. In
    training, statistics that are in the variables become those of the batch.
    """

    momentum: float = 0.0
    is_tracking: bool | None = None


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _normalize_groups(x: Array, num_groups: int, epsilon: float) -> Array:
    """Each group of channels of an example with mean 0 and variance 1."""
    return _standardize_groups(x, num_groups, epsilon)[0]


@_normalize_groups.defjvp
def _normalize_groups_jvp(num_groups: int, epsilon: float, values: tuple[Array], tangents: tuple[Array]):
    """The custom gradient takes two averages instead of five."""
    y, precision = _standardize_groups(*values, num_groups, epsilon)
    average = partial(_average_groups, num_groups)
    return y, precision * (tangents[0] - average(tangents[0]) - y * average(y * tangents[0]))


def _standardize_groups(x: Array, num_groups: int, epsilon: float) -> tuple[Array, Array]:
    """The normalized entries, and 1 / sqrt(variance + epsilon)."""
    centered = x - _average_groups(num_groups, x)
    precision = lax.rsqrt(_average_groups(num_groups, jnp.square(centered)) + epsilon)
    return centered * precision, precision


def _average_groups(num_groups: int, x: Array) -> Array:
    """[batch, 1, ..., channel], equal for all channels of a group. Averages each channel first, with less rounding.

    Groups are averaged by a matrix product, because on a CPU a lookup of the group would be repeated for every entry of
    the broadcast result, which takes many times as long as the rest.
    """
    num_channels = x.shape[-1]
    group = jnp.arange(num_channels) // (num_channels // num_groups)
    shares = (group[:, None] == group) * (num_groups / math.prod(x.shape[1:]))
    totals = x.reshape(x.shape[0], -1, num_channels).sum(1)
    averages = jnp.matmul(totals, shares.astype(x.dtype), precision=lax.Precision.HIGHEST)
    return averages.reshape(x.shape[0], *[1] * (x.ndim - 2), num_channels)


class GroupNorm(nn.GroupNorm):
    """Group normalization: each example separately, with channels in groups.

    The largest number of equal groups up to `num_groups` with at least four channels each, since normalization removes
    most information from smaller groups without positions; otherwise one group. Leaves: params scale, bias [channel].
    Wu and He, Group Normalization, ECCV 2018. arXiv:1803.08494
    """

    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: Array, mask: Array, is_training: bool) -> Array:
        del mask, is_training
        shape = x.shape[-1:]
        exact = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        y = _normalize_groups(exact, _num_groups(x.shape[-1], self.num_groups), self.epsilon)
        y = y * param(self, "scale", self.scale_init, shape, self.param_dtype)
        return (y + param(self, "bias", self.bias_init, shape, self.param_dtype)).astype(x.dtype)


def _num_groups(num_channels: int, max_groups: int | None) -> int:
    return max(
        (n for n in range(1, (max_groups or 1) + 1) if num_channels % n == 0 and num_channels // n >= 4), default=1
    )


@partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _normalize_channels(x: Array, epsilon: float, is_centered: bool) -> Array:
    centered, deviation = _center_channels(x, epsilon, is_centered)
    return centered / deviation


@_normalize_channels.defjvp
def _normalize_channels_jvp(epsilon: float, is_centered: bool, values: tuple[Array], tangents: tuple[Array]):
    """The custom gradient takes two averages. It divides, because XLA would repeat a product for every later layer.

    The gradient of a residual stream is a sum over layers, whose terms XLA for CPUs computes once only if they are
    expensive.
    """
    (x,), (tangent,) = values, tangents
    centered, deviation = _center_channels(x, epsilon, is_centered)
    y = centered / deviation
    across = y * jnp.mean(y * tangent, axis=-1, keepdims=True)
    if is_centered:
        across += jnp.mean(tangent, axis=-1, keepdims=True)
    return y, (tangent - across) / deviation


def _center_channels(x: Array, epsilon: float, is_centered: bool) -> tuple[Array, Array]:
    """The entries and their root mean square, [..., 1], both after the mean over channels is subtracted if centered."""
    centered = x - jnp.mean(x, axis=-1, keepdims=True) if is_centered else x
    return centered, jnp.sqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + epsilon)


class LayerNorm(nn.LayerNorm):
    """Layer normalization over the channels of each position, computed in float32 or float64.

        y = scale (x - m) / sqrt(v + epsilon) + bias

    Leaves: params scale, bias [channel].
    """

    is_centered = True

    @nn.compact
    def __call__(self, x: Array) -> Array:
        exact = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        y = _normalize_channels(exact, self.epsilon, self.is_centered)
        y = y * param(self, "scale", nn.initializers.ones, x.shape[-1:], self.param_dtype)
        if self.is_centered:
            y = y + param(self, "bias", nn.initializers.zeros, x.shape[-1:], self.param_dtype)
        return y.astype(x.dtype)


class RMSNorm(nn.RMSNorm):
    """Root mean square normalization, y = scale x / sqrt(mean(x^2) + epsilon). Leaves: params scale [channel]."""

    is_centered = False
    __call__ = LayerNorm.__call__


class Identity(nn.Module):
    """No normalization."""

    def __call__(self, x: Array, mask: Array, is_training: bool) -> Array:
        del mask, is_training
        return x


NormKind = Literal["batch", "batch_stat", "static", "group", "none"]
NORMS: dict[NormKind, Callable[..., nn.Module]] = {
    "batch": BatchNorm,
    "batch_stat": partial(BatchNorm, is_tracking=False, use_scale=False, use_bias=False),
    "static": StaticBatchNorm,
    "group": GroupNorm,
    "none": Identity,
}


@validate_arguments
def norm(
    kind: NormKind, name: str | None = None, *, epsilon: PositiveFraction = 1e-5, momentum: Fraction = 0.9
) -> nn.Module:
    """A normalization layer by its kind.

    Args:
        kind: "batch": BatchNorm. "batch_stat": batch statistics in training and evaluation, without parameters, so
            results depend on the rest of the batch (HarmoFL's authors' code). "static": StaticBatchNorm (HeteroFL's).
            "group": GroupNorm. "none": Identity.
        name: The name of the layer in its module.
        epsilon: Added to variances.
        momentum: The weight of the old running statistics of "batch"; the other kinds have none.

    Raises:
        InputError: The kind is unknown.
    """
    settings = {"batch": {"epsilon": epsilon, "momentum": momentum}, "none": {}}.get(kind, {"epsilon": epsilon})
    return NORMS[kind](name=name, **settings)
