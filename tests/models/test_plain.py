"""Plain Linen and NNX modules as models: their features, their training and their errors."""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import fedjax_het as fh
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models import from_flax
from fedjax_het.types import Context

SHAPE = (6, 6, 1)
FEDERATION = fh.data.toy(num_clients=4, num_classes=3, image=SHAPE)


class MLP(nn.Module):
    norm: bool = False
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(8)(x.reshape(len(x), -1))
        if self.norm:
            x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.Dropout(self.dropout, deterministic=not train)(nn.relu(x))
        return nn.Dense(3)(x)


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic):
        x = nn.BatchNorm(use_running_average=deterministic)(nn.Conv(4, (3, 3))(x))
        x = nn.avg_pool(nn.relu(x), (2, 2), (2, 2)).reshape(len(x), -1)
        return nn.Dense(3)(nn.Dropout(0.2, deterministic=deterministic)(x))


class NnxMLP(nnx.Module):
    def __init__(self, norm=False, *, rngs):
        self.hidden = nnx.Linear(36, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs) if norm else None
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.out = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        x = self.hidden(x.reshape(len(x), -1))
        if self.norm is not None:
            x = self.norm(x)
        return self.out(self.dropout(nnx.relu(x)))


class Scaled(nn.Module):
    @nn.compact
    def __call__(self, x):
        return 2 * nn.Dense(3)(x.reshape(len(x), -1))


MODULES = {
    "linen": MLP(),
    "linen_norm": CNN(),
    "nnx_norm": functools.partial(NnxMLP, True),
    "nnx_instance": NnxMLP(rngs=nnx.Rngs(0)),
}


def train(module, algorithm="fedavg", rounds=2):
    return fh.simulate(getattr(fh.algorithms, algorithm)(), from_flax(module), FEDERATION, rounds=rounds)


def context(mask, is_training):
    return Context(mask, jnp.zeros((), jnp.int32), make_key(0), is_training)


def predict(module):
    """(inputs, the initial variables of the model of a module, its logits in evaluation)."""
    inputs = jnp.asarray(FEDERATION.examples.inputs[:5], jnp.float32)
    model = from_flax(module)
    variables = model.init(make_key(1), inputs)
    (features, _), _ = model.encode(variables, inputs, context(jnp.ones(5), False))
    return inputs, variables, model.classify(variables["params"], features)


def moments(variables):
    """The moments of batch normalization, "batch_stats" in Linen and "BatchStat" in NNX."""
    return next(variables[name] for name in ("batch_stats", "BatchStat") if name in variables)


def are_close(tree, other):
    return all(jax.tree.leaves(jax.tree.map(lambda a, b: bool(jnp.allclose(a, b, rtol=1e-5)), tree, other)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "algorithm"),
    [*((name, "moon") for name in MODULES), ("linen_norm", "fedrep"), ("nnx_norm", "fedrep")],
)
def test_plain_modules_train_with_algorithms_that_read_features_or_the_head(module, algorithm):
    assert np.isfinite(train(MODULES[module], algorithm).train_loss).all()


@pytest.mark.extended
@pytest.mark.parametrize(
    ("module", "arguments", "head"),
    [(MLP(True, 0.2), {"train": False}, "Dense_1"), (CNN(), {"deterministic": True}, "Dense_0")],
)
def test_logits_are_those_of_the_module(module, arguments, head):
    inputs, variables, logits = predict(module)
    theirs = dict(variables, params=dict(variables["params"]))
    theirs["params"][head] = theirs["params"].pop("classifier")
    np.testing.assert_allclose(logits, module.apply(theirs, inputs, **arguments), rtol=1e-5, atol=1e-6)


@pytest.mark.extended
def test_logits_are_those_of_the_nnx_module():
    module = NnxMLP(True, rngs=nnx.Rngs(0))
    inputs, _, logits = predict(module)
    module.eval()
    np.testing.assert_allclose(logits, module(inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.extended
@pytest.mark.parametrize("module", [MLP(True, 0.2), MODULES["nnx_norm"]])
def test_batch_norm_leaves_out_padding(module):
    inputs, mask = jnp.asarray(FEDERATION.examples.inputs[:6], jnp.float32), jnp.ones(6).at[4:].set(0)
    model = from_flax(module)
    variables = model.init(make_key(1), inputs)
    _, state = model.encode(variables, inputs, context(mask, True))
    _, padded = model.encode(variables, inputs.at[4:].set(1e3), context(mask, True))
    assert not are_close(moments(state), moments(variables))
    assert are_close(moments(state), moments(padded))


@pytest.mark.extended
def test_modules_without_a_dense_head_train_where_no_features_are_read():
    assert np.isfinite(train(Scaled()).train_loss).all()


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [("moon", "reads features, and the last dense layer of this model, 'Dense_0'"), ("fedrep", "classifier")],
)
def test_modules_without_a_dense_head_are_refused_by_methods_that_read_features_or_the_head(algorithm, message):
    with pytest.raises(InputError, match=message):
        train(Scaled(), algorithm)


def test_unknown_arguments_of_a_module_are_named():
    class Unknown(nn.Module):
        @nn.compact
        def __call__(self, x, temperature):
            return nn.Dense(3)(x.reshape(len(x), -1)) / temperature

    with pytest.raises(InputError, match="'temperature' without a default"):
        train(Unknown())


def test_what_is_no_module_is_refused():
    with pytest.raises(InputError, match="expected a Linen module"):
        from_flax(cast(Any, 3))
