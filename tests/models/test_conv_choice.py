"""The convolutions that a model leaves undecided: what is worth timing, and how one is set."""

import jax
import jax.numpy as jnp
import pytest

from fedjax_het import models
from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.errors import InputError
from fedjax_het.models import find_conv_candidates, select_conv_impl, with_conv
from fedjax_het.types import Context

IMAGES = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
CONTEXT = Context(jnp.ones(1), jnp.zeros((), jnp.int32), jax.random.key(0), True)


def small_cnn(conv="auto"):
    return models.cnn(3, channels=(2,), hidden=(4,), kernel=3, conv=conv)


def operations(model):
    """The primitives of a forward pass: `lax` convolves, `im2col` concatenates, `shifts` only multiplies."""
    variables = jax.eval_shape(model.init, jax.random.key(0), IMAGES)
    jaxpr = jax.make_jaxpr(lambda *of: model.classify(of[0]["params"], model.encode(*of, CONTEXT)[0][0]))
    found = {str(equation.primitive) for equation in jaxpr(variables, IMAGES).eqns}
    return found & {"conv_general_dilated", "concatenate", "ffi_call"}


def test_an_implementation_is_set_where_the_model_leaves_it_undecided():
    assert operations(with_conv("lax")(small_cnn())) == {"conv_general_dilated"}
    assert operations(with_conv("im2col")(small_cnn("timed"))) == {"concatenate"}
    assert operations(with_conv("shifts")(small_cnn())) == set()
    assert operations(with_conv("lax")(small_cnn("im2col"))) == {"concatenate"}
    assert operations(models.computed_in("bfloat16")(with_conv("lax")(small_cnn()))) == {"conv_general_dilated"}
    assert operations(with_conv("auto")(small_cnn())) == operations(small_cnn())


def test_im2col_takes_the_place_of_native_where_that_is_not_available():
    assert operations(models.computed_in("bfloat16")(with_conv("native")(small_cnn()))) == {"concatenate"}


def test_an_unknown_implementation_is_refused():
    with pytest.raises(InputError, match="Did you mean 'shifts'"):
        with_conv("shift")


@pytest.mark.parametrize(
    ("conv", "platform", "is_layout_given", "expected"),
    [
        ("auto", "gpu", False, ("lax", "im2col", "shifts")),
        ("auto", "tpu", True, ()),
        ("timed", "tpu", True, ("lax", "im2col", "shifts")),
        ("im2col", "gpu", False, ()),
        ("auto", "cpu", False, ()),
    ],
)
def test_convolutions_are_timed_off_the_cpu_or_where_asked_for(conv, platform, is_layout_given, expected):
    with tracing_for(platform):
        assert find_conv_candidates(small_cnn(conv), IMAGES, is_layout_given=is_layout_given) == expected


def test_what_auto_stands_for_is_timed_first():
    usual, *others = find_conv_candidates(small_cnn("timed"), IMAGES, is_layout_given=True)
    assert usual == select_conv_impl() and {"lax", "shifts"} <= {usual, *others}
    in_bfloat16 = models.computed_in("bfloat16")(small_cnn("timed"))
    assert find_conv_candidates(in_bfloat16, IMAGES, is_layout_given=True) == ("im2col", "lax", "shifts")


def test_a_model_without_convolutions_has_no_candidates():
    with tracing_for("gpu"):
        assert find_conv_candidates(models.mlp(3), IMAGES, is_layout_given=False) == ()
