"""The choice of a convolution by "auto", and the compiled kernels in every derivative."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import models
from fedjax_het._internal.keys import make_key
from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.errors import InputError
from fedjax_het.models._conv_impl import convolve, find_conv_candidates, select_conv_impl, with_conv
from fedjax_het.models._layers import Conv
from fedjax_het.models._native import convolution
from fedjax_het.types import Context
from tests.harness import compose, federation

reason = convolution.explain_missing_kernel()
needs_native = pytest.mark.skipif(reason is not None, reason=f"no kernels: {reason}")
# n, h, w, c, kh, kw, f: fewer features than a register holds, more, and one too many; tiles that do not divide.
CASES = [(2, 9, 11, 3, 3, 2, 5), (1, 5, 5, 1, 5, 5, 33), (3, 8, 17, 4, 3, 3, 16), (2, 7, 7, 20, 1, 1, 40)]
# Winograd's: channels and features that fill one register and more; images smaller than a tile, and blocks of them.
CASES += [(3, 9, 11, 17, 3, 3, 18), (20, 3, 4, 16, 3, 3, 40), (6, 7, 12, 20, 5, 5, 33), (40, 6, 6, 16, 5, 5, 64)]
CASES += [(20, 3, 4, 70, 3, 3, 40), (2, 3, 3, 70, 3, 3, 60), (20, 1, 2, 80, 3, 3, 60)]  # two slices; large kernels
# In the order of the image's pixels: rows of the kernel that fill one register, one and four more, and two pairs.
CASES += [(2, 12, 12, 20, 5, 5, 3), (2, 16, 16, 20, 5, 4, 17), (1, 20, 20, 20, 3, 6, 10)]
PADS = ((1, 0), (0, 2))


def tensors(case):
    n, h, w, c, kh, kw, f = case
    random = np.random.default_rng(0)
    x, kernel = (random.normal(size=shape).astype(np.float32) for shape in ((n, h, w, c), (kh, kw, c, f)))
    return x, kernel / np.float32(np.sqrt(kh * kw * c))  # results near one: the sine of large ones magnifies rounding


def kernel_of(case):
    """Stride 1, one more row and two more columns by padding."""
    n, h, w, c, kh, kw, f = case
    if not convolution.is_suitable((n, h, w, c), (kh, kw, c, f), 1, PADS):
        return "product"
    return convolution.select_algorithm((n, h, w, c), (kh, kw, c, f), 1, PADS)


def test_the_cases_reach_every_native_kernel():
    algorithms = ["direct"] * 3 + ["scatter"] + ["winograd"] * 5 + ["product"] * 2 + ["scatter"] * 3
    assert [kernel_of(case) for case in CASES] == algorithms


def summed_convolution(impl, stride, pads=PADS):
    return lambda x, kernel: jnp.sum(jnp.sin(convolve(impl, x, kernel, (stride, stride), pads)))


def gradient(function):
    return jax.grad(function, (0, 1))


def second_gradient(function):
    return gradient(lambda *arguments: sum(jnp.sum(jnp.square(part)) for part in gradient(function)(*arguments)))


def directional_gradient(function):
    return lambda x, kernel: jax.jvp(gradient(function), (x, kernel), (x / 2, kernel / 3))


DERIVATIVES = {"first": gradient, "second": second_gradient, "forward over reverse": directional_gradient}


def assert_equal(found, expected):
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.extended
@needs_native
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_native_has_the_derivatives_of_lax(case, stride, derivative):
    x, kernel = tensors(case)
    ours, theirs = (jax.jit(DERIVATIVES[derivative](summed_convolution(name, stride))) for name in ("native", "lax"))
    assert_equal(ours(x, kernel), theirs(x, kernel))


@pytest.mark.slow
@needs_native
@pytest.mark.parametrize(
    ("side", "images", "pixels", "channels", "features", "max_error"),
    [
        pytest.param(3, 20, 14, 32, 64, 1e-6, id="3 x 3"),
        pytest.param(5, 20, 14, 32, 64, 5e-6, id="5 x 5"),
        pytest.param(3, 120, 4, 256, 200, 1e-6, id="3 x 3, transformed in groups of features"),
        pytest.param(5, 20, 14, 128, 72, 5e-6, id="5 x 5, transformed in groups of features"),
    ],
)
def test_winograds_algorithm_rounds_little(side, images, pixels, channels, features, max_error):
    """The convolution and both gradients, as shares of the norms of those in float64."""
    case = (images, pixels, pixels, channels, side, side, features)
    assert kernel_of(case) == "winograd"
    given = *tensors(case), tensors((images, pixels + 2 - side, pixels + 3 - side, features, 1, 1, 1))[0]

    def products(impl, x, kernel, y):
        found, transposed = jax.vjp(lambda x, kernel: convolve(impl, x, kernel, (1, 1), PADS), x, kernel)
        return [np.asarray(array) for array in (found, *transposed(y))]

    ours = products("native", *map(jnp.asarray, given))
    with jax.enable_x64(True):
        exact = products("im2col", *(jnp.asarray(array, jnp.float64) for array in given))
    for found, expected in zip(ours, exact, strict=True):
        assert expected.dtype == np.float64
        assert np.linalg.norm(found - expected) < max_error * np.linalg.norm(expected)


@pytest.mark.extended
@needs_native
@pytest.mark.parametrize("derivative", DERIVATIVES)
@pytest.mark.parametrize("shape", [(5, 2, 2, 70, 3, 3, 60), (5, 2, 3, 70, 3, 3, 60)], ids=["2 x 2", "2 x 3"])
def test_native_has_the_derivatives_of_lax_on_few_pixels(shape, derivative):
    x, kernel = tensors(shape)
    losses = (summed_convolution(name, 1, ((1, 1), (1, 1))) for name in ("native", "lax"))
    ours, theirs = (jax.jit(DERIVATIVES[derivative](loss)) for loss in losses)
    assert_equal(ours(x, kernel), theirs(x, kernel))


@needs_native
def test_images_of_two_by_two_pixels_take_nine_products():
    x, kernel = tensors((5, 2, 2, 512, 3, 3, 512))
    function = partial(convolve, "native", strides=(1, 1), pads=((1, 1), (1, 1)))
    assert str(jax.make_jaxpr(function)(x, kernel)).count("dot_general") == 9
    with jax.enable_x64(True):
        wide = (jnp.asarray(array, jnp.float64) for array in (x, kernel))
        exact = np.asarray(convolve("im2col", *wide, (1, 1), ((1, 1), (1, 1))))
    assert exact.dtype == np.float64
    assert np.linalg.norm(function(x, kernel) - exact) < 1e-6 * np.linalg.norm(exact)


@needs_native
def test_pixels_skipped_by_the_stride_have_no_gradient():
    x, kernel = tensors((2, 5, 6, 3, 1, 1, 4))

    def gradients(name):
        def loss(x, kernel):
            return jnp.sum(jnp.sin(convolve(name, x, kernel, (2, 2), ((0, 0), (0, 0)))))

        return jax.grad(loss, (0, 1))(x, kernel)

    assert_equal(gradients("native"), gradients("lax"))


@needs_native
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_native_convolutions_work_under_vmap(axes):
    x, kernel = tensors(CASES[0])
    given = [np.stack([a, -2 * a]) if axis == 0 else a for a, axis in zip((x, kernel), axes, strict=True)]
    ours, theirs = (jax.jit(jax.vmap(gradient(summed_convolution(name, 2)), axes)) for name in ("native", "lax"))
    assert_equal(ours(*given), theirs(*given))


def with_bias(impl):
    x, kernel = tensors(CASES[0])
    return lambda bias, factor: jnp.sum(jnp.sin(convolve(impl, factor * x, kernel, (2, 2), PADS, bias)))


BIAS = np.linspace(-1, 1, 5, dtype=np.float32)


@needs_native
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_native_biases_have_the_derivatives_of_lax(derivative):
    ours, theirs = (jax.jit(DERIVATIVES[derivative](with_bias(name))) for name in ("native", "lax"))
    assert_equal(ours(BIAS, 0.7), theirs(BIAS, 0.7))


@needs_native
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_native_biases_work_under_nested_vmap(axes):
    """Of clients, and of seeds around them."""
    given = [
        np.multiply.outer([[1, 2, 3], [3, 1, 2]], a) if axis == 0 else a
        for a, axis in zip((BIAS, 0.7), axes, strict=True)
    ]
    given = [np.asarray(a, np.float32) for a in given]
    ours, theirs = (jax.jit(jax.vmap(jax.vmap(gradient(with_bias(name)), axes), axes)) for name in ("native", "lax"))
    assert_equal(ours(*given), theirs(*given))


@needs_native
def test_auto_is_native_for_float32_on_a_cpu(monkeypatch):
    assert select_conv_impl() == "native" == select_conv_impl("float32")
    assert select_conv_impl(jnp.bfloat16) == "im2col" == select_conv_impl("bfloat16")
    assert select_conv_impl(strides=(1, 2)) == "im2col"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert select_conv_impl() == "lax"


def test_without_kernels_auto_is_im2col_and_native_is_refused(monkeypatch):
    monkeypatch.setattr(convolution, "explain_missing_kernel", lambda: "no C++ compiler on the PATH")
    assert select_conv_impl() == "im2col"
    with pytest.raises(InputError, match=r"no C\+\+ compiler.*conv='auto'"):
        Conv(2, impl="native").init(make_key(0), jnp.zeros((1, 4, 4, 1)))


@pytest.mark.extended
def test_a_round_on_a_cpu_contains_no_xla_convolution():
    """Inside a loop that would cost several times the rest of the round (jax issues 12868, 26568)."""
    round = compose("fedavg", network=small_cnn())
    data, key = federation().data, make_key(0)
    program = jax.jit(round.step).lower(round.init(key, data), data, key).compile().as_text()
    assert "while(" in program
    assert " convolution(" not in program


# ---- the choice of "auto" --------------------------------------------------------------------------------------------
IMAGES = jax.ShapeDtypeStruct((1, 8, 8, 3), jnp.float32)
CONTEXT = Context(jnp.ones(1), jnp.zeros((), jnp.int32), make_key(0), True)


def small_cnn(conv="auto"):
    return models.cnn(3, channels=(2,), hidden=(4,), kernel=3, conv=conv)


def operations(model):
    """The primitives of a forward pass: `lax` convolves, `im2col` concatenates."""
    variables = jax.eval_shape(model.init, make_key(0), IMAGES)
    jaxpr = jax.make_jaxpr(lambda *args: model.classify(args[0]["params"], model.encode(*args, CONTEXT)[0][0]))
    found = {str(equation.primitive) for equation in jaxpr(variables, IMAGES).eqns}
    return found & {"conv_general_dilated", "concatenate", "ffi_call"}


def test_an_implementation_is_set_where_the_model_has_auto():
    assert operations(with_conv("lax")(small_cnn())) == {"conv_general_dilated"}
    assert operations(with_conv("im2col")(small_cnn())) == {"concatenate"}
    assert operations(with_conv("lax")(small_cnn("im2col"))) == {"concatenate"}
    assert operations(models.computed_in("bfloat16")(with_conv("lax")(small_cnn()))) == {"conv_general_dilated"}


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
        assert find_conv_candidates(models.mlp(3), IMAGES) == ()
