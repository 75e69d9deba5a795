"""Laws of FedDG: interpolation of amplitudes, their sources, the contrast of boundaries, the episodes."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import data, models
from fedjax_het._internal.keys import make_key
from fedjax_het.client.episodes import interpolated_amplitudes
from fedjax_het.client.measures import low_frequency_amplitudes
from fedjax_het.client.objectives import boundary_contrast
from fedjax_het.client.objectives._contrastive import supervised_contrast
from fedjax_het.engine import Simulation
from fedjax_het.engine.round.participation import Participation
from fedjax_het.errors import InputError
from fedjax_het.problem import ForwardPass, Problem
from fedjax_het.spectra import interpolate_amplitudes, low_amplitudes
from fedjax_het.types import Batch, Broadcast, ClientView, Outputs
from tests.harness import algorithm, compose, difference, federation, is_equal, model, run, train

RNG = np.random.default_rng(0)
BAND = 0.34  # of 6 pixels: half-width 2
IMAGES, OTHERS = (jnp.asarray(RNG.uniform(0.1, 1, (3, 6, 7, 2)), jnp.float32) for _ in range(2))


def interpolate(rate: float, band: float = BAND, others=OTHERS) -> np.ndarray:
    rates = jnp.full(len(IMAGES), rate)
    return np.asarray(interpolate_amplitudes(IMAGES, low_amplitudes(others, band), rates, band))


@pytest.mark.extended
def test_interpolated_images_are_linear_in_the_rate_and_keep_their_phases():
    assert np.array_equal(interpolate(0.0), IMAGES)
    np.testing.assert_allclose(interpolate(0.8, others=IMAGES), IMAGES, atol=1e-6)
    ends = 0.7 * interpolate(0.0) + 0.3 * interpolate(1.0)
    np.testing.assert_allclose(interpolate(0.3), ends, atol=1e-6)
    before, after, theirs = (np.fft.fft2(x, axes=(1, 2)) for x in (IMAGES, interpolate(1.0), OTHERS))
    np.testing.assert_allclose(after / np.abs(after), before / np.abs(before), atol=1e-4)
    is_low = np.logical_and.outer(*(np.abs(np.fft.fftfreq(n) * n) <= 2.5 for n in (6, 7)))[..., None]
    np.testing.assert_allclose(np.abs(after), np.where(is_low, np.abs(theirs), np.abs(before)), atol=1e-4)


@pytest.mark.extended
def test_without_a_band_only_the_mean_of_each_channel_is_replaced():
    """The released training: x - mean x + mean of the other."""
    expected = IMAGES + (OTHERS.mean((1, 2)) - IMAGES.mean((1, 2)))[:, None, None]
    np.testing.assert_allclose(interpolate(1.0, band=0.0), expected, atol=1e-6)
    assert np.abs(interpolate(1.0) - expected).max() > 0.05


def view_of(client: int, published: dict | None = None) -> ClientView:
    received = Broadcast(jnp.zeros((), int), {}, published or {})
    own = jax.tree.map(lambda x: x[client], federation().data._replace(examples=()))
    return ClientView(received, {}, {}, own._replace(examples=federation().data.examples), {}, {}, (), {},
                      jnp.zeros(()), jnp.asarray(client))  # fmt: skip


@pytest.mark.extended
def test_amplitudes_are_those_of_other_known_clients_each_as_likely():
    """Client i's j-th image has the amplitude 10 i + j."""
    amplitudes = (10.0 * np.arange(5)[:, None] + np.arange(4)).reshape(5, 4, 1, 1, 1)
    latest = {"amplitudes": jnp.asarray(amplitudes), "count": jnp.asarray([2.0, 4, 3, 4, 1])}
    is_known = jnp.array([True, True, False, True, True])
    batch = Batch(jnp.ones((600, 2, 2, 1)), jnp.zeros(600, int), jnp.ones(600))
    alter = jax.jit(interpolated_amplitudes(0.0, rate=1.0))

    def draws(is_known):
        view = view_of(1, {"amplitudes": {"latest": latest, "is_known": is_known}})
        return np.asarray(alter(batch, view, make_key(0)))

    drawn, counts = np.unique(np.rint(draws(is_known).sum((1, 2, 3))), return_counts=True)
    assert set(drawn) == {0, 1, 30, 31, 32, 33, 40}
    by_client = np.bincount((drawn // 10).astype(int), counts)
    np.testing.assert_allclose(by_client[[0, 3, 4]], 200, atol=45)
    assert np.array_equal(draws(jnp.arange(5) == 1), batch.inputs)  # only its own


@pytest.mark.parametrize("num_images", [3, 60])
def test_a_client_sends_amplitudes_of_images_from_all_over_its_table(num_images):
    problem, client = Problem(model(), (), federation().prepare), 4
    count = int(federation().data.train.count[client])
    answer = jax.jit(partial(low_frequency_amplitudes(BAND, num_images), problem))(view_of(client))
    assert answer["count"] == min(count, num_images)
    positions = [0, count // 3, 2 * count // 3] if num_images == 3 else np.arange(count)
    rows = federation().data.train.index[client, positions]
    transform = np.fft.fft2(federation().prepare(federation().data.examples.inputs[rows]), axes=(1, 2))
    low = np.array([0, 1, 2, 4, 5])  # all but frequency -3
    expected = np.abs(transform)[:, low][:, :, low]
    assert len(answer["amplitudes"]) == num_images
    np.testing.assert_allclose(answer["amplitudes"][: len(rows)], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_server_keeps_the_last_amplitudes_of_the_clients_that_were_asked():
    participation = Participation(lambda n: 2, lambda key, n, number: (jnp.array([3, 1]), jnp.array([True, False])))
    round = compose("feddg", norm="none", participation=participation, options={"num_images": 4})
    state, _ = run(round, rounds=2)
    kept = state.server.published["amplitudes"]
    assert kept["is_known"].tolist() == [False, False, False, True, False]
    expected = low_frequency_amplitudes(0.01, 4)(round.problem, view_of(3))
    np.testing.assert_allclose(kept["latest"]["amplitudes"][3], expected["amplitudes"], rtol=1e-5)
    assert not np.any(kept["latest"]["amplitudes"][:3])


@pytest.mark.slow
def test_without_transformation_inner_step_and_boundary_it_is_fedavg_at_twice_the_rate():
    plain = {"rate": 0.0, "inner_step": 0.0, "gamma": 0.0, "learning_rate": 0.025}
    average, ours = train("fedavg")["params"], train("feddg", **plain)["params"]
    assert difference(average, ours) < 1e-6


def masks_of_boxes(num: int) -> np.ndarray:
    masks = np.zeros((num, 12, 12), int)
    masks[:, 3:8, 2:7] = 1
    return masks


def contrast(features, labels, mask, second=None) -> jax.Array:
    batch = Batch(jnp.zeros((len(labels), 12, 12, 1)), jnp.asarray(labels), jnp.asarray(mask, float))
    logits = jnp.zeros((*np.shape(labels), 3))
    passes = [ForwardPass(None, {}, {}, Outputs(jnp.asarray(maps), logits, {}), batch, None, None)
              for maps in (features, features if second is None else second)]  # fmt: skip
    return boundary_contrast(1.0)(*passes)


@pytest.mark.extended
def test_the_boundary_contrast_leaves_out_examples_without_a_structure_and_padding():
    features, second = RNG.normal(size=(2, 3, 12, 12, 4))
    labels = masks_of_boxes(3)
    labels[2] = 0
    value = jax.jit(jax.value_and_grad(contrast))
    loss, gradient = value(features, labels, np.ones(3), second)
    alone, _ = value(features[:2], labels[:2], np.ones(2), second[:2])
    assert loss > 0 and np.isfinite(gradient).all() and not np.any(gradient[2])
    np.testing.assert_allclose(loss, alone, rtol=1e-5)
    padded, gradient = value(features, masks_of_boxes(3), np.array([1, 1, 0]), second)
    np.testing.assert_allclose(padded, alone, rtol=1e-5)
    assert not np.any(gradient[2])
    nothing, gradient = value(features, np.zeros_like(labels), np.ones(3), second)
    assert nothing == 0 and not np.any(gradient)
    assert contrast(features, np.zeros(3, int), np.ones(3)) == 0  # labels of whole examples


def test_the_boundary_contrast_of_maps_of_another_size_is_refused():
    with pytest.raises(InputError, match=r"boundary contrast: features have shape \(6, 6, 4\)"):
        contrast(np.zeros((3, 6, 6, 4)), masks_of_boxes(3), np.ones(3))


def test_the_supervised_contrast_reads_directions_alone_and_is_small_where_labels_are_apart():
    vectors, labels, everyone = RNG.normal(size=(6, 3)), jnp.array([1, 1, 1, 0, 0, 0]), jnp.ones(6, bool)
    value = jax.jit(supervised_contrast)
    loss, scaled = (value(jnp.asarray(vectors * size), labels, everyone) for size in (1.0, RNG.uniform(0.1, 9, (6, 1))))
    np.testing.assert_allclose(loss, scaled, rtol=1e-4)
    apart = jnp.asarray(np.where(labels[:, None] == 1, 1.0, -1.0) * np.ones(3))
    assert 0 <= value(apart, labels, everyone) < 1e-6 < loss


def test_inputs_that_are_no_images_and_standardised_images_are_refused():
    with pytest.raises(InputError, match=r"summary of its images takes images"):
        Simulation(algorithm("feddg"), model("none"), data.toy(3), rounds=1)
    with pytest.raises(InputError, match=r"standardise: .*Set standardise=False"):
        Simulation(algorithm("feddg"), model("none"), data.toy(3, image=(6, 6, 1), standardise=True), rounds=1)


@pytest.mark.slow
def test_the_boundary_term_and_the_episodes_change_the_training_on_masks():
    masks = data.toy(num_clients=3, num_classes=2, image=(16, 16, 1), masks=True, examples_per_client=(12, 16))

    def end(**options):
        unet = models.unet(2, norm="none", width=1 / 8, levels=2)
        run = Simulation(algorithm("feddg", band=0.1, **options), unet, masks, rounds=2)
        return run.advance(run.start(), 2)[0].server.shared["params"]

    plain = end()
    assert is_equal(plain, end())
    for options in ({"gamma": 0.0}, {"rate": 0.0}, {"inner_step": 1.0}, {"preset": "released"}):
        assert difference(plain, end(**options)) > 1e-5, options
