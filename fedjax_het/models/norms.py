"""Normalisation layers; all are called as ``norm(x, mask, is_training)`` on x [batch, ..., channel]."""

import math
from functools import partial

import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array


class BatchNorm(nn.BatchNorm):
    """Batch normalisation that leaves padding out, with PyTorch's running statistics.

        y = scale (x - m) / sqrt(v + epsilon) + bias
        mean <- momentum mean + (1 - momentum) m,   var <- momentum var + (1 - momentum) v n / (n - 1)

    m and v are the mean and the biased variance over the n entries of a channel (examples times positions) whose
    `mask` [batch] is 1; in evaluation they are the running ones. A batch that is all padding leaves the running
    statistics alone; one entry by itself, which PyTorch refuses, counts with variance 0.

    momentum: the part that is kept, 0.9 (PyTorch counts the other part and calls it 0.1).
    is_tracking: False keeps no running statistics and takes the batch's in evaluation too.
    Of the base's settings those of reductions and axes are not read: channels come last.
    Leaves: params scale, bias [channel]; batch_stats mean, var [channel].
    """

    momentum: float = 0.9
    is_tracking: bool = True

    @nn.compact
    def __call__(self, x: Array, mask: Array, is_training: bool) -> Array:
        shape = x.shape[-1:]
        dtype = jnp.promote_types(x.dtype, jnp.float32)
        if is_training or not self.is_tracking:
            mean, var, count = _masked_moments(x.astype(dtype), mask)
        if self.is_tracking:
            running_mean = self.variable("batch_stats", "mean", jnp.zeros, shape, self.param_dtype)
            running_var = self.variable("batch_stats", "var", jnp.ones, shape, self.param_dtype)
            if is_training:
                unbiased = var * count / jnp.maximum(count - 1, 1)
                self._track(running_mean, mean, count)
                self._track(running_var, unbiased, count)
            else:
                mean, var = running_mean.value, running_var.value
        y = (x - mean) * lax.rsqrt(var + self.epsilon)
        if self.use_scale:
            y = y * self.param("scale", self.scale_init, shape, self.param_dtype)
        if self.use_bias:
            y = y + self.param("bias", self.bias_init, shape, self.param_dtype)
        return y.astype(x.dtype)

    def _track(self, running: nn.Variable, value: Array, count: Array) -> None:
        old = running.value
        new = self.momentum * old + (1 - self.momentum) * lax.stop_gradient(value)
        running.value = jnp.where(count > 0, new, old).astype(old.dtype)


def _masked_moments(x: Array, mask: Array) -> tuple[Array, Array, Array]:
    """(mean [channel], biased variance [channel], number of entries []) over the examples whose mask is not 0."""
    is_example = mask.reshape(-1, *[1] * (x.ndim - 1)) != 0
    axes = tuple(range(x.ndim - 1))
    count = jnp.sum(is_example, dtype=x.dtype) * math.prod(x.shape[1:-1])
    divisor = jnp.maximum(count, 1)
    mean = jnp.sum(x, axes, where=is_example) / divisor
    var = jnp.sum(jnp.square(x - mean), axes, where=is_example) / divisor
    return mean, var, count


class GroupNorm(nn.GroupNorm):
    """Group normalisation: each example by itself, its channels in groups.

    As many groups as divide the channels evenly, at most `num_groups`, of at least four channels each: of two channels
    without positions little would be left, of one nothing. Otherwise one group. Leaves: params scale, bias [channel].
    Wu and He, Group Normalization, ECCV 2018. arXiv:1803.08494
    """

    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: Array, mask: Array, is_training: bool) -> Array:
        del mask, is_training
        shape = x.shape[-1:]
        num_groups = _num_groups(x.shape[-1], self.num_groups)
        groups = x.reshape(x.shape[0], -1, num_groups, x.shape[-1] // num_groups)
        groups = groups.astype(jnp.promote_types(x.dtype, jnp.float32))
        mean = groups.mean((1, 3), keepdims=True)
        var = jnp.square(groups - mean).mean((1, 3), keepdims=True)
        y = ((groups - mean) * lax.rsqrt(var + self.epsilon)).reshape(x.shape)
        y = y * self.param("scale", self.scale_init, shape, self.param_dtype)
        return (y + self.param("bias", self.bias_init, shape, self.param_dtype)).astype(x.dtype)


def _num_groups(num_channels: int, most: int) -> int:
    return max((n for n in range(1, most + 1) if num_channels % n == 0 and num_channels // n >= 4), default=1)


class Identity(nn.Module):
    """No normalisation."""

    def __call__(self, x: Array, mask: Array, is_training: bool) -> Array:
        del mask, is_training
        return x


NORMS = {
    "batch": BatchNorm,
    "batch_stat": partial(BatchNorm, is_tracking=False, use_scale=False, use_bias=False),
    "group": GroupNorm,
    "none": Identity,
}


def norm(kind: str, name: str | None = None) -> nn.Module:
    """A normalisation layer by its kind.

    "batch": BatchNorm. "batch_stat": the batch's own statistics always and nothing learned, so results depend on what
    else is in the batch (HarmoFL's authors' code). "group": GroupNorm. "none": Identity.
    Raises InputError for an unknown kind.
    """
    check_norm(kind)
    return NORMS[kind](name=name)


def check_norm(kind: str) -> None:
    if kind not in NORMS:
        raise InputError(f"norm: no kind '{kind}'. {nearest(str(kind), NORMS)}")
