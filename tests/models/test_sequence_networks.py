"""Networks of tokens: the recurrence against Flax's, causality, precision, and what they refuse."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from fedjax_het.models import LSTM, computed_in, lstm, transformer
from fedjax_het.types import Context

pytestmark = pytest.mark.extended

KEY = jax.random.key(0)
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
        weights = jax.random.normal(jax.random.key(1), (2, 5, 4))
        gradient = jax.grad(lambda *arguments: jnp.sum(weights * run(*arguments)), argnums=(0, 1))
        squares = lambda *arguments: sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient(*arguments)))  # noqa: E731
        return run(params, x), gradient(params, x), jax.grad(squares, argnums=(0, 1))(params, x)

    ours = differentiate(lambda params, x: LSTM(4).apply({"params": params}, x))
    chex.assert_trees_all_close(ours, differentiate(run_flax), rtol=1e-4, atol=1e-5)


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
