"""Token inputs: checks, padding and positions; and the sizes of published language networks."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

import jax
import jax.numpy as jnp

from fedjax_het.errors import InputError
from fedjax_het.models._attention import Activation
from fedjax_het.models._weight_files import check_config, complete_sizes, describe_sizes
from fedjax_het.types import Array, HostArray
from fedjax_het.validation import Count, FractionBelowOne, Positive

Outputs = Literal["last", "every"]
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "swiglu",
}
"""Ours by the names in config.json; "silu" only where the first dense layer is gated."""


class Sizes(TypedDict, total=False):
    """The sizes that all language networks have.

    They follow from the config.json beside the pretrained weights, or are else those of the smallest published network.
    """

    features: Count
    layers: Count
    heads: Count
    mlp_size: Count
    epsilon: Positive
    dropout: FractionBelowOne


class Family(NamedTuple):
    """The configuration files of published networks.

    keys: {argument: key in config.json}, see `complete_sizes`.
    usual: {argument: value without a config.json, or where it lacks the key}.
    supported: {key in config.json: the values that the network here has}.
    """

    keys: Mapping[str, str]
    usual: Mapping[str, Any]
    supported: Mapping[str, Sequence[Any]]

    def complete(self, pretrained: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments, with those that are given.

        Raises:
            InputError: An argument contradicts config.json, the network is not supported, or the features cannot be
                divided among heads.
        """
        if pretrained is not None:
            check_config(pretrained, self.supported)
        sizes = complete_sizes(pretrained, self.keys, self.usual, given)
        if "head_size" not in sizes:
            check_heads(sizes["features"], sizes["heads"])
        return sizes

    def describe(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The content of config.json for a network of these sizes."""
        return describe_sizes(self.keys, self.supported, sizes)


def check_heads(features: int, heads: int) -> None:
    """Raise InputError unless the features can be divided among the heads."""
    if features % heads:
        raise InputError(f"features: {features} cannot be divided among {heads} heads. Give a multiple of heads.")


def check_tokens(network: str, inputs: HostArray, max_length: int | None = None) -> None:
    """Raise InputError unless inputs are tokens [batch, length] of at most this length."""
    if inputs.ndim != 2 or not jnp.issubdtype(inputs.dtype, jnp.integer):
        raise InputError(
            f"{network} takes tokens [batch, length], and was given {jax.dtypes.canonicalize_dtype(inputs.dtype)} of "
            f"shape {inputs.shape}. Take a network for images or tables, such as cnn or mlp."
        )
    if max_length is not None and inputs.shape[1] > max_length:
        raise InputError(
            f"{network} has positions for {max_length} tokens, and was given {inputs.shape[1]}. Cut the texts shorter, "
            "or take a network with more positions."
        )


def count_positions(is_token: Array) -> Array:
    """The number of tokens before each position [batch, length]; padding is not counted, and has some valid number."""
    return jnp.maximum(jnp.cumsum(is_token, axis=1) - 1, 0)


def take_first(x: Array, is_token: Array) -> Array:
    """The position [batch, feature] of the first token of x [batch, length, feature]."""
    return _take(x, jnp.argmax(is_token, axis=1))


def take_last(x: Array, is_token: Array) -> Array:
    """The position [batch, feature] of the last token of x [batch, length, feature]."""
    return _take(x, is_token.shape[1] - 1 - jnp.argmax(is_token[:, ::-1], axis=1))


def _take(x: Array, positions: Array) -> Array:
    return jnp.take_along_axis(x, positions[:, None, None], axis=1)[:, 0]
