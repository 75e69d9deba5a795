"""Convolutions with conv="auto": which implementations are timed, and how one is set."""

import jax
import jax.numpy as jnp
import pytest

from fedjax_het import models
from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.errors import InputError
from fedjax_het.models._conv_impl import find_conv_candidates, select_conv_impl, with_conv
from fedjax_het.types import Context

IMAGES = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
CONTEXT = Context(jnp.ones(1), jnp.zeros((), jnp.int32), jax.random.key(0), True)


def small_cnn(conv="auto"):
    return models.cnn(3, channels=(2,), hidden=(4,), kernel=3, conv=conv)


def operations(model):
    """The primitives of a forward pass: `lax` convolves, `im2col` concatenates."""
    variables = jax.eval_shape(model.init, jax.random.key(0), IMAGES)
    jaxpr = jax.make_jaxpr(lambda *of: model.classify(of[0]["params"], model.encode(*of, CONTEXT)[0][0]))
    found = {str(equation.primitive) for equation in jaxpr(variables, IMAGES).eqns}
    return found & {"conv_general_dilated", "concatenate", "ffi_call"}


def test_an_implementation_is_set_where_the_model_has_auto():
    assert operations(with_conv("lax")(small_cnn())) == {"conv_general_dilated"}
    assert operations(with_conv("im2col")(small_cnn())) == {"concatenate"}
    assert operations(with_conv("lax")(small_cnn("im2col"))) == {"concatenate"}
    assert operations(models.computed_in("bfloat16")(with_conv("lax")(small_cnn()))) == {"conv_general_dilated"}


@pytest.mark.parametrize("name", ["shifts", "timed", "patches"])
def test_an_unknown_implementation_is_refused_with_the_known_ones(name):
    with pytest.raises(InputError, match=f"conv: no implementation '{name}'"):
        small_cnn(name)


@pytest.mark.parametrize(
    ("conv", "platform", "expected"),
    [
        ("auto", "gpu", ("lax", "im2col")),
        ("auto", "tpu", ("lax", "im2col")),
        ("im2col", "gpu", ()),
        ("auto", "cpu", ()),
    ],
)
def test_convolutions_with_auto_are_timed_on_accelerators(conv, platform, expected):
    with tracing_for(platform):
        assert find_conv_candidates(small_cnn(conv), IMAGES) == expected
        assert not expected or expected[0] == select_conv_impl()


def test_a_model_without_convolutions_has_no_candidates():
    with tracing_for("gpu"):
        assert find_conv_candidates(models.mlp(3), IMAGES) == ()
