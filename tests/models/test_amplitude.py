import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models import mlp
from fedjax_het.models._amplitude import amplitude_normalised, normalise, update_average
from fedjax_het.types import Context

KEY = make_key(0)
IMAGES = jax.random.uniform(KEY, (4, 5, 6, 2))
ONES = jnp.ones(4)


def adapted(**settings):
    """A model whose features are its (normalised) inputs, and its first variables."""
    model = amplitude_normalised(**settings)(mlp(3, hidden=()))
    return model, model.init(KEY, IMAGES)


def run(model, variables, images=IMAGES, *, round=0, is_training=True, mask=ONES):
    context = Context(mask, jnp.int32(round), KEY, is_training)
    (features, _), state = model.encode(variables, images, context)
    return features.reshape(images.shape), {"params": variables["params"]} | state


@pytest.mark.extended
def test_with_an_empty_average_evaluation_leaves_images_unchanged():
    model, variables = adapted()
    assert variables["amplitude"]["average"].shape == (5, 6, 2)
    features, after = run(model, variables, is_training=False)
    np.testing.assert_array_equal(features, IMAGES)
    assert after["amplitude"]["count"] == 0


def test_training_normalises_by_the_new_average():
    model, variables = adapted(decay=0.3)
    average, count = jnp.zeros((5, 6, 2)), jnp.float32(0)
    for scale in (1.0, 3.0):
        average, count = update_average(average, count, scale * IMAGES, ONES, 0.3)
        features, variables = run(model, variables, scale * IMAGES)
        np.testing.assert_allclose(features, normalise(scale * IMAGES, average), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(variables["amplitude"]["average"], average, rtol=1e-6)
    assert variables["amplitude"]["count"] == 2


@pytest.mark.parametrize(("rounds", "is_fixed"), [(1, True), (3, False), (None, False)])
def test_the_average_is_fixed_after_its_rounds(rounds, is_fixed):
    model, variables = adapted(rounds=rounds)
    _, first = run(model, variables, round=5)  # an empty average is filled in later rounds, too
    assert first["amplitude"]["count"] == 1
    features, later = run(model, first, 2 * IMAGES, round=2)
    assert bool(jnp.all(later["amplitude"]["average"] == first["amplitude"]["average"])) == is_fixed
    assert later["amplitude"]["count"] == (1 if is_fixed else 2)
    expected = normalise(2 * IMAGES, later["amplitude"]["average"])
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)


def test_evaluation_normalises_by_the_stored_average_and_keeps_it():
    model, variables = adapted(rounds=None)
    _, trained = run(model, variables)
    features, after = run(model, trained, 2 * IMAGES + 1, is_training=False)
    expected = normalise(2 * IMAGES + 1, trained["amplitude"]["average"])
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, after["amplitude"], trained["amplitude"])


def test_a_batch_of_padding_leaves_the_average_unchanged():
    model, variables = adapted(rounds=None)
    features, after = run(model, variables, mask=jnp.zeros(4))
    np.testing.assert_array_equal(features, IMAGES)
    _, trained = run(model, variables)
    _, later = run(model, trained, 2 * IMAGES, mask=jnp.zeros(4))
    jax.tree.map(np.testing.assert_array_equal, after["amplitude"], variables["amplitude"])
    jax.tree.map(np.testing.assert_array_equal, later["amplitude"], trained["amplitude"])


@pytest.mark.extended
def test_no_gradient_passes_through_the_normalisation():
    model, variables = adapted()

    def loss(average, images):
        amplitude = {"average": average, "count": jnp.float32(1)}
        return jnp.sum(jnp.square(run(model, variables | {"amplitude": amplitude}, images)[0]))

    gradients = jax.grad(loss, (0, 1))(jnp.ones((5, 6, 2)), IMAGES)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradients))


def test_layers_are_those_of_the_model():
    assert adapted()[0].layers(IMAGES) == mlp(3, hidden=()).layers(IMAGES)


def test_images_of_another_size_are_refused():
    model, variables = adapted()
    with pytest.raises(InputError, match=r"\(5, 5, 2\).*\(5, 6, 2\)"):
        run(model, variables, IMAGES[:, :, :5])
    with pytest.raises(InputError, match=r"shape \(4, 60\)"):
        model.init(KEY, IMAGES.reshape(4, 60))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay": 1.5}, r"decay: .* \[0, 1\], not 1\.5"),
        ({"decay": 0, "init": "zero"}, "above 0 unless init='first'"),
        ({"init": "firs"}, "Did you mean 'first'"),
        ({"band": "fulll"}, "Did you mean 'full'"),
        ({"band": 1.5}, r"band: must be .*a number in \[0, 1\].*not 1\.5"),
        ({"rounds": 0}, "rounds: .* from 1 .*not 0"),
        ({"phase_tolerance": -1.0}, "phase_tolerance: .* of at least 0 or None, not -1"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        amplitude_normalised(**settings)
