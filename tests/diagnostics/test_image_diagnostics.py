"""Image diagnostics: images with true and predicted masks, and before and after amplitude normalisation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import data, models, sharing, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.engine import Simulation
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError
from fedjax_het.models._amplitude import normalise
from fedjax_het.types import Context
from tests.algorithms.test_segmentation import PixelClassifier
from tests.harness import algorithm, is_equal, model

pytestmark = pytest.mark.extended

MASKED = data.toy(num_clients=5, num_classes=2, image=(8, 8, 1), masks=True, examples_per_client=(12, 16))
IMAGES = data.toy(num_clients=3, image=(8, 8, 2))


def simulation(chosen, federation, name, network=None, **options):
    network = network or models.from_flax(PixelClassifier())
    return Simulation(chosen, network, federation, rounds=2, diagnostics={name: DIAGNOSTICS[name]}, **options)


@pytest.mark.slow
def test_contours_show_the_models_after_the_round_on_clients_own_test_images():
    network = models.from_flax(PixelClassifier())
    chosen = replace(algorithm("fedavg"), sharing=sharing.personal("params/classifier/*"))
    built = simulation(chosen, MASKED, "contours", network)
    state = built.start()
    found = jax.tree.map(lambda x: x[0], built.diagnose(state)["contours"])
    after = jax.tree.map(lambda x: x[0], built.advance(state, 1)[0])
    assert found["images"].shape == (4, 2, 8, 8, 1) and found["is_image"].all()
    for client in range(4):
        rows = MASKED.data.test.index[client, :2]
        images = MASKED.prepare(MASKED.examples.inputs[rows])
        np.testing.assert_allclose(found["images"][client], images, atol=1e-3)
        np.testing.assert_array_equal(found["true"][client], MASKED.examples.labels[rows])
        own = jax.tree.map(lambda x, i=client: x[i], after.clients.personal)
        variables = tree.merge(after.server.shared, own)
        context = Context(jnp.ones(2), jnp.int32(0), make_key(0), False)
        (features, _), _ = network.encode(variables, images, context)
        predicted = np.argmax(network.classify(variables["params"], features), axis=-1)
        assert np.mean(found["predicted"][client] == predicted) > 0.99


@pytest.mark.slow
def test_a_client_with_few_test_images_has_empty_places():
    few = data.toy(num_clients=3, num_classes=2, image=(8, 8, 1), masks=True, examples_per_client=(5, 20))
    counts = few.data.test.count
    assert counts.min() < 2 <= counts.max()
    built = simulation(algorithm("fedavg"), few, "contours", participation=participation.uniform(2), num_seeds=2)
    found = built.diagnose(built.start())
    ids = found["cohort"]["ids"]
    assert found["contours"]["images"].shape[:3] == (2, 2, 2)
    np.testing.assert_array_equal(found["contours"]["is_image"].sum(axis=2), np.minimum(counts, 2)[ids])


@pytest.mark.slow
@pytest.mark.parametrize("band", ["full", pytest.param("dc", marks=pytest.mark.slow)])
def test_normalisation_shows_the_images_that_enter_the_network_and_leaves_the_state_unchanged(band):
    built = simulation(algorithm("harmofl", band=band), IMAGES, "normalisation", model())
    state, untouched = built.start(), built.start()
    found = jax.tree.map(lambda x: x[0], built.diagnose(state)["normalisation"])
    after, _ = built.advance(state, 1)
    assert is_equal(after, built.advance(untouched, 1)[0])
    average = after.server.shared["amplitude"]["average"][0]
    for client in range(3):
        images = IMAGES.prepare(IMAGES.examples.inputs[IMAGES.data.test.index[client, :2]])
        np.testing.assert_allclose(found["images"][client], images, atol=1e-3)
        np.testing.assert_allclose(found["normalised"][client], normalise(images, average, band=band), atol=2e-3)
        assert np.abs(found["normalised"][client] - found["images"][client]).max() > 0.01


@pytest.mark.parametrize(
    ("name", "federation", "recipe", "message"),
    [
        ("contours", IMAGES, "fedavg", r"'contours' is for masks.* one label each"),
        ("normalisation", IMAGES, "fedavg", r"'normalisation' .* model has none.*adapt=amplitude_normalised"),
        ("normalisation", data.toy(), "fedavg", r"'normalisation' is for images .* not for inputs \(8,\)"),
        (
            "contours",
            data.toy(image=True, masks=True, client_test_fraction=0.0),
            "fedavg",
            r"'contours' .* no client has any.*client_test_fraction",
        ),
    ],
)
def test_unsuitable_data_and_models_are_refused(name, federation, recipe, message):
    network = models.from_flax(PixelClassifier()) if federation.examples.labels.ndim > 1 else model()
    with pytest.raises(InputError, match=message):
        simulation(algorithm(recipe), federation, name, network)


@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_every_diagnostic_has_titles_and_a_caption(name):
    record = DIAGNOSTICS[name]
    assert record.title and record.caption.endswith(".")
    assert all(quantity.title for quantity in record.quantities.values())
