import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.errors import InputError
from fedjax_het.models import cnn, lenet
from fedjax_het.types import Context

KEY = jax.random.key(0)


def num_params(model, *size):
    variables = jax.eval_shape(model.init, KEY, jax.ShapeDtypeStruct((1, *size), jnp.float32))
    return sum(leaf.size for leaf in jax.tree.leaves(variables["params"]))


def test_cnn_has_the_number_of_parameters_in_mcmahans_paper():
    assert num_params(cnn(10), 28, 28, 1) == 1_663_370


def test_lenet_has_its_usual_number_of_parameters():
    assert num_params(lenet(10), 32, 32, 3) == 62_006


@pytest.mark.extended
def test_gradients_do_not_depend_on_the_convolution_implementation():
    inputs = jax.random.normal(KEY, (3, 16, 16, 3))
    variables = jax.jit(lenet(4, norm="batch").init)(KEY, inputs)

    def gradient(conv):
        model = lenet(4, norm="batch", conv=conv)

        def loss(params):
            context = Context(jnp.array([1.0, 1, 0]), jnp.int32(0), KEY, True)
            (features, _), _ = model.encode(variables | {"params": params}, inputs, context)
            return jnp.sum(jnp.square(model.classify(params, features)[:2]))

        return jax.jit(jax.grad(loss))(variables["params"])

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), gradient("lax"), gradient("im2col")
    )


@pytest.mark.parametrize(("factory", "smallest"), [(lenet, 16), (cnn, 4)])
def test_the_error_for_small_images_names_the_smallest_size(factory, smallest):
    model = factory(3, width=0.1)
    with pytest.raises(InputError, match=f"at least {smallest}x{smallest}"):
        model.init(KEY, jnp.zeros((1, smallest, smallest - 1, 1)))
    assert num_params(model, smallest, smallest, 1) > 0


def test_inputs_other_than_images_are_refused():
    with pytest.raises(InputError, match=r"\(2, 784\)"):
        cnn(10).init(KEY, jnp.zeros((2, 784)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"conv": "im2co"}, "Did you mean 'im2col'"),
        ({"channels": ()}, "channels is empty"),
        ({"kernel": 0}, "kernel: must be a whole number from 1"),
        ({"padding": "same"}, "padding: unknown option 'same'"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        lenet(3, **settings)
