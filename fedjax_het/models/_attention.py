"""Multi-head attention, and the transformer block that all networks with attention are made of."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from fedjax_het.models._dense import Dense, param
from fedjax_het.models._norms import LayerNorm
from fedjax_het.types import Array

Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "swiglu"]
Rotation = tuple[Array, Array]
"""Cosines and sines of rotary positions, [batch or 1, length, head size]."""


def _quick_gelu(x: Array) -> Array:
    return x * nn.sigmoid(1.702 * x)


_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "relu": nn.relu,
        "gelu": partial(nn.gelu, approximate=False),
        "gelu_tanh": partial(nn.gelu, approximate=True),
        "quick_gelu": _quick_gelu,
        "swiglu": nn.silu,
    }
)


class Attention(nn.Module):
    """Self attention over x [batch, length, feature].

        y = W_o concat_h(softmax(q_h k_h^T / sqrt(head size)) v_h)

    The softmax is computed in float32 or float64. A masked score is a finite minimum: a query without any key gets the
    mean of all values, and its gradients are finite.

    Args:
        num_heads: The number of query heads.
        num_kv_heads: The number of key and value heads (default None, all); query head h uses head h // (num_heads /
            num_kv_heads).
        head_size: The size of a head (default None, feature / num_heads).
        is_causal: Whether a position attends only to itself and earlier positions.
        is_fused: Whether the layers query, key and value are a single layer qkv, with their outputs in this order.
        use_bias: Whether query, key and value have biases.
        use_output_bias: Whether the layer out has a bias.
    """

    num_heads: int
    num_kv_heads: int | None = None
    head_size: int | None = None
    is_causal: bool = False
    is_fused: bool = False
    use_bias: bool = True
    use_output_bias: bool = True

    @nn.compact
    def __call__(
        self,
        x: Array,
        mask: Array | None = None,
        rotation: Rotation | None = None,
        num_queries: int | None = None,
    ) -> Array:
        """Attend to the keys that `mask` [batch, length] allows, after rotating queries and keys.

        With `num_queries`, only the first positions attend, and are returned; not with rotations or causal attention.
        """
        size = self.head_size or x.shape[-1] // self.num_heads
        query, key, value = (y.reshape(*y.shape[:-1], -1, size) for y in self._project(x, size, num_queries))
        if rotation is not None:
            query, key = (_rotate(y, rotation) for y in (query, key))
        allowed = None if mask is None else mask[:, None, :].astype(bool)
        if self.is_causal:
            earlier = jnp.tri(x.shape[1], dtype=bool)
            allowed = earlier if allowed is None else earlier & allowed
        y = _attend(query, key, value, allowed)
        y = y.reshape(*y.shape[:2], -1)
        return Dense(x.shape[-1], self.use_output_bias, name="out")(y)

    def _project(self, x: Array, size: int, num_queries: int | None) -> list[Array]:
        features, kv_features = self.num_heads * size, (self.num_kv_heads or self.num_heads) * size
        if self.is_fused:
            y = Dense(features + 2 * kv_features, self.use_bias, name="qkv")(x)
            query, key, value = jnp.split(y, [features, features + kv_features], axis=-1)
            return [query[:, :num_queries], key, value]
        sizes = {"query": features, "key": kv_features, "value": kv_features}
        inputs = {"query": x[:, :num_queries]}
        return [Dense(size, self.use_bias, name=name)(inputs.get(name, x)) for name, size in sizes.items()]


def _attend(query: Array, key: Array, value: Array, allowed: Array | None) -> Array:
    """The weighted means [batch, length, head, head size] of values, of which `allowed` is [batch or 1, query, key].

    `jax.nn.dot_product_attention` has a softmax in float32 even for float64, and its gradient copies the weights, which
    takes longer on CPUs than the products.
    """
    grouped = query.reshape(*query.shape[:2], key.shape[2], -1, query.shape[-1]) / math.sqrt(query.shape[-1])
    if allowed is not None:
        allowed = jnp.expand_dims(allowed, (-4, -3))
    # Without the barrier, XLA repeats rotations in each copy.
    heads = lax.optimization_barrier((grouped.transpose(0, 2, 3, 1, 4), key.swapaxes(1, 2), value.swapaxes(1, 2)))
    y = _average(*heads, allowed)
    return y.transpose(0, 3, 1, 2, 4).reshape(query.shape)


@jax.custom_vjp
def _average(query: Array, key: Array, value: Array, allowed: Array | None) -> Array:
    """softmax(query key^T) value [batch, kv head, group, query, size], of key and value [batch, kv head, key, size].

    Reverse-mode gradients of any order exist; forward mode (`jax.jvp`) raises an error.
    """
    return _average_forward(query, key, value, allowed)[0]


def _average_forward(query: Array, key: Array, value: Array, allowed: Array | None) -> tuple[Array, tuple]:
    exact = jnp.promote_types(query.dtype, jnp.float32)
    scores = _multiply(query, key, 3)
    if allowed is not None:
        scores = jnp.where(allowed, scores, 0.5 * jnp.finfo(exact).min)
    odds = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    totals = jnp.sum(odds, axis=-1, keepdims=True)
    odds = odds.astype(value.dtype)
    y = (_multiply(odds, value, 2) / totals).astype(value.dtype)
    return y, (query, key, value, allowed, odds, totals, y)


def _average_backward(residuals: tuple, y_bar: Array) -> tuple[Array, Array, Array, None]:
    """With weights w and scores z, dz = w (dw - dy y): the sum of w dw over keys is that of dy y over features."""
    query, key, value, allowed, odds, totals, y = residuals
    exact = totals.dtype
    inner = jnp.sum(y_bar.astype(exact) * y.astype(exact), axis=-1, keepdims=True)
    scores_bar = odds * ((_multiply(y_bar, value, 3) - inner) / totals)
    if allowed is not None:
        scores_bar = jnp.where(allowed, scores_bar, 0)
    scores_bar = scores_bar.astype(query.dtype)
    query_bar = _multiply(scores_bar, key, 2).astype(query.dtype)
    key_bar = _sum_over_queries(query, scores_bar).astype(key.dtype)
    value_bar = _sum_over_queries((y_bar / totals).astype(value.dtype), odds).astype(value.dtype)
    return query_bar, key_bar, value_bar, None


_average.defvjp(_average_forward, _average_backward)


def _multiply(x: Array, y: Array, axis: int) -> Array:
    """Products of x [batch, kv head, group, query, i] and y [batch, kv head, ...] over i, which is this axis of y."""
    exact = jnp.promote_types(x.dtype, jnp.float32)
    return lax.dot_general(x, y, (((4,), (axis,)), ((0, 1), (0, 1))), preferred_element_type=exact)


def _sum_over_queries(x: Array, weights: Array) -> Array:
    """Sums of x [batch, kv head, group, query, size] with weights [..., key]: [batch, kv head, key, size].

    The narrow factor is transposed; the barrier prevents XLA from transposing the wide one.
    """
    exact = jnp.promote_types(x.dtype, jnp.float32)
    narrow = lax.optimization_barrier(jnp.moveaxis(x, -1, 2))
    sums = lax.dot_general(narrow, weights, (((3, 4), (2, 3)), ((0, 1), (0, 1))), preferred_element_type=exact)
    return sums.swapaxes(2, 3)


def _rotate(x: Array, rotation: Rotation) -> Array:
    """(x_1 cos - x_2 sin, x_2 cos + x_1 sin) of the halves of each head of x [batch, length, head, head size]."""
    first, second = jnp.split(x, 2, axis=-1)
    cosines, sines = (y[:, :, None, :] for y in rotation)
    return (x * cosines + jnp.concatenate([-second, first], axis=-1) * sines).astype(x.dtype)


class Block(nn.Module):
    """Attention and two dense layers, both with a residual connection and a norm.

        pre-norm:   x <- x + s_0 drop(attention(norm_0(x))),   x <- x + s_1 drop(mlp(norm_1(x)))
        post-norm:  x <- norm_0(x + drop(attention(x))),       x <- norm_1(x + drop(mlp(x)))
        mlp(x) = W_1 activation(W_0 x),   for "swiglu" W_1 (silu(W_gate x) * W_0 x)

    Args:
        attention: Makes the attention, such as `partial(Attention, num_heads=4)`.
        hidden: The number of hidden units of the mlp.
        norm: Makes a norm, such as `partial(LayerNorm, epsilon=1e-5)`.
        activation: "gelu" uses the error function, "gelu_tanh" the tanh approximation; "quick_gelu" is x sigmoid(1.702
            x).
        is_post_norm: Whether norms follow the residual sums.
        use_bias: Whether the dense layers of the mlp have biases.
        layer_scale: The initial value of trained scales s_0 and s_1 [feature], leaves layer_scale_0 and layer_scale_1
            (default None, both 1 and not trained).
        dropout: The dropout rate of both residual branches.
    """

    attention: Callable[..., Attention]
    hidden: int
    norm: Callable[..., nn.Module] = LayerNorm
    activation: Activation = "gelu"
    is_post_norm: bool = False
    use_bias: bool = True
    layer_scale: float | None = None
    dropout: float = 0.0

    @nn.compact
    def __call__(
        self,
        x: Array,
        is_training: bool,
        mask: Array | None = None,
        rotation: Rotation | None = None,
        num_outputs: int | None = None,
    ) -> Array:
        """With `num_outputs`, return the first positions only."""
        attention = self.attention(name="attention")
        for index, branch in enumerate((lambda x: attention(x, mask, rotation, num_outputs), self._mlp)):
            norm = self.norm(name=f"norm_{index}")
            y = branch(x if self.is_post_norm else norm(x))
            if self.layer_scale is not None:
                initial = nn.initializers.constant(self.layer_scale)
                y = y * param(self, f"layer_scale_{index}", initial, (x.shape[-1],)).astype(y.dtype)
            x = x[:, :num_outputs] + nn.Dropout(self.dropout, deterministic=not is_training)(y)
            x = norm(x) if self.is_post_norm else x
        return x

    def _mlp(self, x: Array) -> Array:
        activate = _ACTIVATIONS[self.activation]
        y = Dense(self.hidden, self.use_bias, name="dense_0")(x)
        is_gated = self.activation == "swiglu"
        y = activate(Dense(self.hidden, self.use_bias, name="dense_gate")(x)) * y if is_gated else activate(y)
        return Dense(x.shape[-1], self.use_bias, name="dense_1")(y)
