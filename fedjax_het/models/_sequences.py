"""Networks for token sequences: an LSTM and a small transformer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from fedjax_het.errors import InputError
from fedjax_het.models._attention import Attention, Block
from fedjax_het.models._dense import add_bias, param
from fedjax_het.models._model import Network, NumClasses, from_flax, scale_widths
from fedjax_het.models._native import recurrence
from fedjax_het.models._norms import LayerNorm
from fedjax_het.models._tokens import Outputs, check_heads, check_tokens, take_last
from fedjax_het.types import Array, Model, PyTree
from fedjax_het.validation import Count, FractionBelowOne, Positive, validate_arguments


class LSTM(nn.Module):
    """One layer of long short-term memory over x [batch, length, feature] -> [batch, length, unit].

        (i, f, g, o)_t = W x_t + U h_{t-1} + b
        c_t = sigmoid(f_t + 1) c_{t-1} + sigmoid(i_t) tanh(g_t),   h_t = sigmoid(o_t) tanh(c_t),   h_0 = c_0 = 0

    The products with W are computed for all positions before the loop. c is always float32. The recurrence has a custom
    reverse-mode gradient of any order; forward mode (`jax.jvp`) raises an error.
    Leaves: kernel [feature, 4 unit], recurrent [unit, 4 unit], bias [4 unit].
    """

    num_units: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        size = 4 * self.num_units
        kernel = param(self, "kernel", nn.initializers.lecun_normal(), (x.shape[-1], size))
        recurrent = param(self, "recurrent", nn.initializers.orthogonal(), (self.num_units, size))
        bias = param(self, "bias", nn.initializers.zeros_init(), (size,))
        x, kernel, recurrent = nn.dtypes.promote_dtype(x, kernel, recurrent)
        if x.dtype == jnp.float32 and not recurrence.explain_missing_kernel():
            return _recur(_NATIVE, x, kernel, recurrent, bias)
        return jnp.swapaxes(_recur(_LOOPS, jnp.swapaxes(x, 0, 1), kernel, recurrent, bias), 0, 1)


class _Recurrence(NamedTuple):
    """The recurrence over all positions, and its gradient; sequences [batch, length, ...] or [length, batch, ...]."""

    forward: Callable[..., Sequence[Array]]  # W x + b (4 unit), U -> h_t, h_{t-1}, open gates (4 unit), c_t
    backward: Callable[..., Array]  # the gradient for h_t, open gates, c_t, U -> the gradient for W x + b


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _recur(way: _Recurrence, x: Array, kernel: Array, recurrent: Array, bias: Array) -> Array:
    """The hidden states of x, W, U and b.

    The gradient of U is a single product over all positions; the gradient of a loop would accumulate one product per
    position.
    """
    return _recur_forward(way, x, kernel, recurrent, bias)[0]


def _recur_forward(way: _Recurrence, *arguments: Array) -> tuple[Array, tuple[Array, ...]]:
    x, kernel, recurrent, bias = arguments
    hidden, *kept = way.forward(add_bias(x @ kernel, bias), recurrent)
    return hidden, (*arguments, *kept)


def _recur_backward(way: _Recurrence, kept: tuple[Array, ...], gradients: Array) -> tuple[Array, ...]:
    x, kernel, recurrent, bias, previous, gates, cells = kept
    gate_gradients = way.backward(gradients, gates, cells, recurrent)
    rows = gate_gradients.reshape(-1, kernel.shape[1])

    def sum_products(inputs: Array) -> Array:
        transposed = lax.optimization_barrier(inputs.reshape(-1, inputs.shape[-1]).T)  # XLA may transpose all rows
        return jnp.matmul(transposed, rows, preferred_element_type=gates.dtype).astype(kernel.dtype)

    bias_gradient = jnp.sum(rows.astype(gates.dtype), 0).astype(bias.dtype)
    return gate_gradients @ kernel.T, sum_products(x), sum_products(previous), bias_gradient


_recur.defvjp(_recur_forward, _recur_backward)


def _loop_forward(received: Array, recurrent: Array) -> tuple[Array, ...]:
    exact = jnp.promote_types(received.dtype, jnp.float32)

    def step(carry: tuple[Array, Array], received: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        cell, hidden = carry
        gates = (received + hidden @ recurrent).astype(exact)
        written, forgotten, candidate, shown = jnp.split(gates, 4, axis=-1)
        gates = nn.sigmoid(written), nn.sigmoid(forgotten + 1), nn.tanh(candidate), nn.sigmoid(shown)
        new_cell = gates[1] * cell + gates[0] * gates[2]
        new_hidden = (gates[3] * nn.tanh(new_cell)).astype(received.dtype)
        return (new_cell, new_hidden), (new_hidden, hidden, jnp.concatenate(gates, axis=-1), new_cell)

    start = jnp.zeros((received.shape[1], len(recurrent)), exact)
    return lax.scan(step, (start, start.astype(received.dtype)), received)[1]


def _loop_backward(gradients: Array, gates: Array, cells: Array, recurrent: Array) -> Array:
    transposed = lax.optimization_barrier(recurrent.T)  # on a CPU, multiplying by the transpose takes twice as long

    def step(carry: tuple[Array, Array], position: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        gradient, gates, cell, bounded = position
        written, forgotten, candidate, shown = jnp.split(gates, 4, axis=-1)
        hidden_gradient = carry[0] + gradient
        cell_gradient = carry[1] + hidden_gradient * shown * (1 - jnp.square(bounded))
        gate_gradients = (
            cell_gradient * candidate * written * (1 - written),
            cell_gradient * cell * forgotten * (1 - forgotten),
            cell_gradient * written * (1 - jnp.square(candidate)),
            hidden_gradient * bounded * shown * (1 - shown),
        )
        gate_gradients = jnp.concatenate(gate_gradients, axis=-1).astype(recurrent.dtype)
        return ((gate_gradients @ transposed).astype(cell.dtype), cell_gradient * forgotten), gate_gradients

    start = jnp.zeros_like(cells[0])
    previous = jnp.concatenate([start[None], cells[:-1]])
    positions = (gradients, gates, previous, nn.tanh(cells))
    return lax.scan(step, (start, start), positions, reverse=True)[1]


def _with_gradient_of(loop: Callable, native: Callable) -> Callable:
    """A native function whose derivative is that of a loop with the first two axes of sequences in reverse order."""

    def swap(values: PyTree) -> PyTree:
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1) if x.ndim == 3 else x, values)

    function = jax.custom_jvp(native)
    function.defjvp(
        lambda values, tangents: (
            function(*values),
            jax.jvp(lambda *own: swap(loop(*swap(own))), values, tangents)[1],
        )
    )
    return function


_LOOPS = _Recurrence(_loop_forward, _loop_backward)
_NATIVE = _Recurrence(
    _with_gradient_of(_loop_forward, recurrence.run_forward),
    _with_gradient_of(_loop_backward, recurrence.run_backward),
)


class RecurrentNetwork(Network):
    """An embedding, `LSTM` layers with dropout between them, and a classifier of the last or of every position."""

    vocabulary: int
    embedding: int
    hidden: tuple[int, ...]
    outputs: Outputs
    dropout: float

    @nn.compact
    def encode(self, x: Array, mask: Array, is_training: bool) -> Array:
        check_tokens("an LSTM", x)
        tokens, x = x, nn.Embed(self.vocabulary, self.embedding, name="embedding")(jnp.maximum(x, 0))
        for index, num_units in enumerate(self.hidden):
            x = LSTM(num_units, name=f"lstm_{index}")(x)
            x = nn.Dropout(self.dropout, deterministic=not is_training)(x)
        return take_last(x, tokens >= 0) if self.outputs == "last" else x


class Transformer(Network):
    """Token and position embeddings, pre-norm blocks with causal attention, a norm, and the classifier."""

    vocabulary: int
    features: int
    num_layers: int
    num_heads: int
    outputs: Outputs
    dropout: float

    @nn.compact
    def encode(self, x: Array, mask: Array, is_training: bool) -> Array:
        check_tokens("a transformer", x)
        positions = param(self, "positions", nn.initializers.normal(0.02), (x.shape[1], self.features))
        tokens, x = x, nn.Embed(self.vocabulary, self.features, name="embedding")(jnp.maximum(x, 0))
        x = x + positions.astype(x.dtype)
        attention = partial(Attention, self.num_heads, is_causal=True)
        for index in range(self.num_layers):
            block = Block(
                attention, 4 * self.features, activation="gelu_tanh", dropout=self.dropout, name=f"block_{index}"
            )
            x = block(x, is_training)
        x = LayerNorm(name="norm")(x)
        return take_last(x, tokens >= 0) if self.outputs == "last" else x


@validate_arguments
def lstm(
    num_classes: NumClasses,
    hidden: Sequence[Count] = (256, 256),
    *,
    embedding: Count = 8,
    outputs: Outputs = "last",
    vocabulary: Count | None = None,
    dropout: FractionBelowOne = 0.0,
    width: Positive = 1.0,
) -> Model:
    """The LSTM of LEAF and FedProx for Shakespeare, on tokens [batch, length], padded on the right with -1.

    Args:
        num_classes: The number of classes, tags, ranks or targets; for text, the number of characters.
        hidden: The number of units of each recurrent layer; 256 in LEAF's and FedProx's code, 100 in FedProx's paper.
        embedding: The size of token embeddings.
        outputs: "last" classifies the sequence from its last token, labels [batch]; "every" classifies each position
            from the tokens up to it, labels [batch, length].
        vocabulary: The number of tokens (default None, that of the tokenizer in a config, else the number of classes,
            for labels that are tokens).
        dropout: The dropout rate of recurrent layers.
        width: Multiplier of all entries of `hidden`.

    Raises:
        InputError: Values are invalid, or inputs are not tokens.

    References:
        Caldas et al., LEAF: A Benchmark for Federated Settings, 2018. arXiv:1812.01097. Li et al., Federated
        Optimization in Heterogeneous Networks (FedProx), MLSys 2020. arXiv:1812.06127
    """
    if len(hidden) == 0:
        raise InputError("hidden: an LSTM needs at least one recurrent layer.")
    widths = scale_widths("hidden", hidden, width)
    return from_flax(RecurrentNetwork(num_classes, vocabulary or num_classes, embedding, widths, outputs, dropout))


@validate_arguments
def transformer(
    num_classes: NumClasses,
    features: Count = 128,
    *,
    layers: Count = 2,
    heads: Count = 4,
    outputs: Outputs = "every",
    vocabulary: Count | None = None,
    dropout: FractionBelowOne = 0.0,
) -> Model:
    """A small causal transformer on tokens [batch, length], padded on the right with -1; `length` is always the same.

    Args:
        num_classes: The number of classes, tags, ranks or targets.
        features: The width of the residual stream, a multiple of `heads`.
        layers: The number of blocks.
        heads: The number of attention heads per block.
        outputs: See `lstm`.
        vocabulary: See `lstm`.
        dropout: The dropout rate of residual branches.

    Raises:
        InputError: Values are invalid, or inputs are not tokens.

    References:
        Vaswani et al., Attention Is All You Need, NeurIPS 2017; pre-norm as in Radford et al., 2019 (GPT-2).
    """
    check_heads(features, heads)
    vocabulary = vocabulary or num_classes
    return from_flax(Transformer(num_classes, vocabulary, features, layers, heads, outputs, dropout))
