"""Networks of tokens: the recurrence against Flax's, causality, precision, and what they refuse."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het._internal.keys import make_key
from fedjax_het.models import LSTM, _sequences, computed_in, lstm, transformer
from fedjax_het.models._native import recurrence
from fedjax_het.types import Context

pytestmark = pytest.mark.extended

KEY = make_key(0)
TOKENS = jax.random.randint(KEY, (3, 12), 0, 7)
SMALL = {
    "lstm": lambda **options: lstm(7, hidden=(6, 5), embedding=4, **options),
    "transformer": lambda **options: transformer(7, 8, layers=2, heads=2, **options),
}


def logits(model, tokens, variables=None):
    variables = variables or model.init(KEY, tokens)
    context = Context(jnp.ones(len(tokens)), jnp.int32(0), KEY, False)
    return model.classify(variables["params"], model.encode(variables, tokens, context)[0][0])


@pytest.mark.slow
def test_the_recurrence_and_its_gradients_are_those_of_flax():
    x = jax.random.normal(KEY, (2, 5, 3))
    params = LSTM(4).init(KEY, x)["params"]
    params["bias"] = jax.random.normal(KEY, (16,))

    def run_flax(params, x):
        kernel, recurrent, bias = (jnp.split(params[name], 4, axis=-1) for name in ("kernel", "recurrent", "bias"))
        theirs = {f"i{gate}": {"kernel": part} for gate, part in zip("ifgo", kernel, strict=True)}
        for gate, weights, constant in zip("ifgo", recurrent, bias, strict=True):
            theirs[f"h{gate}"] = {"kernel": weights, "bias": constant + (gate == "f")}
        return nn.RNN(nn.OptimizedLSTMCell(4)).apply({"params": {"cell": theirs}}, x)

    def differentiate(run):
        weights = jax.random.normal(make_key(1), (2, 5, 4))
        gradient = jax.grad(lambda *arguments: jnp.sum(weights * run(*arguments)), argnums=(0, 1))
        squares = lambda *arguments: sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient(*arguments)))  # noqa: E731
        return run(params, x), gradient(params, x), jax.grad(squares, argnums=(0, 1))(params, x)

    ours = differentiate(lambda params, x: LSTM(4).apply({"params": params}, x))
    chex.assert_trees_all_close(ours, differentiate(run_flax), rtol=1e-4, atol=1e-5)


reason = recurrence.explain_missing_kernel()
needs_native = pytest.mark.skipif(reason is not None, reason=f"no kernels: {reason}")


def run_loops(x, *weights):
    return jnp.swapaxes(_sequences._recur(_sequences._LOOPS, jnp.swapaxes(x, 0, 1), *weights), 0, 1)


def run_native(x, *weights):
    return _sequences._recur(_sequences._NATIVE, x, *weights)


def draw_layer(batch, length, units, num_inputs=3):
    random = np.random.default_rng(0)
    shapes = (batch, length, num_inputs), (num_inputs, 4 * units), (units, 4 * units), (4 * units,)
    x, kernel, recurrent, bias = (random.normal(size=shape).astype(np.float32) for shape in shapes)
    return x, kernel, recurrent / np.float32(np.sqrt(units)), bias


def differentiate(run, order):
    """A compiled function to results and the gradient of their sines' sum, or to derivatives of that gradient."""
    gradient = jax.grad(lambda *own: jnp.sum(jnp.sin(run(*own))), (0, 1, 2, 3))
    squares = lambda *own: sum(jnp.sum(g**2) for g in gradient(*own))  # noqa: E731
    first = lambda *own: (run(*own), gradient(*own))  # noqa: E731
    second = lambda *own: (jax.grad(squares, (0, 1, 2, 3))(*own), jax.jvp(gradient, own, own))  # noqa: E731
    return jax.jit({1: first, 2: second}[order])


# Units that fill no register, one and a half, and several tiles; sequences of more than one tile; one position.
@needs_native
@pytest.mark.every_case
@pytest.mark.parametrize(
    ("shape", "order"), [((2, 5, 7), 1), ((13, 4, 24), 1), ((3, 2, 66), 1), ((2, 1, 8), 1), ((2, 3, 5), 2)]
)
def test_the_native_recurrence_and_its_derivatives_are_those_of_the_loop(shape, order):
    arguments = draw_layer(*shape)
    ours, theirs = (differentiate(run, order)(*arguments) for run in (run_native, run_loops))
    for found, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6 * np.abs(expected).max())


@needs_native
@pytest.mark.every_case
@pytest.mark.parametrize("axes", [(0, 0, 0, 0), (0, None, None, None), (None, 1, 0, None)])
def test_the_native_recurrence_of_clients_is_that_of_each(axes):
    layers = [draw_layer(4, 3, 5), tuple(array[..., ::-1] for array in draw_layer(4, 3, 5))]
    arguments = [
        np.stack(pair, axis or 0) if axis is not None else pair[0]
        for pair, axis in zip(zip(*layers, strict=True), axes, strict=True)
    ]
    gradient, alone = differentiate(run_native, 1), []
    together = jax.vmap(gradient, axes)(*arguments)
    for client in range(2):
        own = [a if axis is None else np.take(a, client, axis) for a, axis in zip(arguments, axes, strict=True)]
        alone.append(gradient(*own))
    chex.assert_trees_all_close(together, jax.tree.map(lambda *x: jnp.stack(x), *alone), rtol=1e-5, atol=1e-6)


@needs_native
def test_open_gates_are_exact_for_numbers_of_every_size():
    sizes = np.concatenate([np.logspace(-30, 2, 400), [1e30, np.inf]])
    numbers = np.concatenate([-sizes, [0.0], sizes]).astype(np.float32)
    received = np.stack([numbers, numbers, numbers, -numbers], -1)[:, None]
    *_, gates, cells = recurrence.run_forward(received, np.zeros((1, 4), np.float32))
    exact = numbers.astype(float)
    with np.errstate(over="ignore"):
        written, forgotten, shown = (1 / (1 + np.exp(-x)) for x in (exact, exact + 1, -exact))
    expected = np.stack([written, forgotten, np.tanh(exact), shown], -1)
    np.testing.assert_allclose(gates[:, 0], expected, rtol=3e-7, atol=1e-37)
    np.testing.assert_allclose(cells[:, 0, 0], written * np.tanh(exact), rtol=5e-7, atol=1e-37)
    assert np.isnan(recurrence.run_forward(np.full((1, 1, 4), np.nan, np.float32), np.zeros((1, 4), np.float32))[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_position_is_classified_by_what_is_before_it(name):
    model = SMALL[name](outputs="every")
    variables = model.init(KEY, TOKENS)
    assert set(variables["params"]["classifier"]) == {"kernel", "bias"}
    before, after = (logits(model, tokens, variables) for tokens in (TOKENS, TOKENS.at[:, 8].set(0)))
    assert before.shape == (3, 12, 7)
    np.testing.assert_allclose(after[:, :8], before[:, :8], rtol=1e-5, atol=1e-6)
    assert not np.allclose(after[:, 8:], before[:, 8:], atol=1e-4)
    last = logits(SMALL[name](outputs="last"), TOKENS, variables)
    np.testing.assert_allclose(last, before[:, -1], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_half_precision_is_close_and_leaves_tokens_exact(name):
    model = SMALL[name](outputs="every", vocabulary=2000)
    tokens = TOKENS + 1000  # which bfloat16 does not hold
    variables = model.init(KEY, tokens)
    half = logits(computed_in("bfloat16")(model), tokens, variables)
    assert half.dtype == jnp.float32
    np.testing.assert_allclose(half, logits(model, tokens, variables), atol=0.1)
    following = logits(computed_in("bfloat16")(model), tokens + 1, variables)
    assert not np.array_equal(half[:, 0], following[:, 0])


def test_the_program_of_an_lstm_does_not_grow_with_the_length():
    model = SMALL["lstm"](outputs="every")

    def num_operations(length):
        tokens = jnp.zeros((2, length), jnp.int32)
        return str(jax.make_jaxpr(lambda tokens: logits(model, tokens))(tokens)).count("\n")

    assert num_operations(40) == num_operations(10)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("outputs", ["last", "every"])
def test_padding_on_the_right_changes_nothing(name, outputs):
    model = SMALL[name](outputs=outputs)
    padded = TOKENS.at[1, 5:].set(-1)
    variables = model.init(KEY, padded)
    if name == "transformer":
        short = variables | {"params": dict(variables["params"], positions=variables["params"]["positions"][:5])}
    else:
        short = variables
    whole = logits(model, padded, variables)[1]
    np.testing.assert_allclose(
        whole if outputs == "last" else whole[:5], logits(model, TOKENS[1:2, :5], short)[0], rtol=1e-5, atol=1e-6
    )
