import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedjax_het import tree
from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.models._amplitude import normalise, update_average
from fedjax_het.spectra import spectrum
from tests.shared import shared_path

OFFICIAL = [
    "s0_small_8x8",
    "s1_odd_7x9",
    "s2_medium_32x32_255",
    "s4_fixed_8x8",
    "s5_degenerate_const_zero",
    "s7_gray_5x6",
    "s8_1x1",
]
SEQUENCES = ["s20_small", "s21_odd_seq", "s23_medium", "s24_dc", "s26_degenerate_const", "s27_v1_signed"]
SINGLE = ["s60_const_odd_tol", "s61_self", "s63_pure_tones_tol"]
BOTH_DTYPES = pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])


def golden(name):
    with np.load(shared_path(f"golden/harmofl/amp_{name}.npz")) as file:
        return dict(file), json.loads(str(file["meta"]))


def channels_last(array, dtype):
    """Channels last, from channels before height and width."""
    return jnp.asarray(np.moveaxis(array, -3, -1), dtype)


def assert_close(found, expected, tolerance):
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)


def replay(values, dtype, start, *, decay, band, key, tolerance, **tolerances):
    """The batches of a golden file one after another; (average, count) after the last."""
    average, count = start
    for k in range(int(values.get("n_batches", sum(name[0] == "x" for name in values)))):
        images = channels_last(values[f"x{k}"], dtype)
        average, count = update_average(average, count, images, jnp.ones(len(images)), decay)
        assert_close(average, channels_last(values[f"{key}{k}"], dtype), tolerance)
        found = normalise(images, average, band=band, **tolerances)
        assert_close(found, channels_last(values[f"y{k}"], dtype), tolerance)
    return average, count


@pytest.mark.extended
@pytest.mark.parametrize(("name", "platform"), [*((name, "cpu") for name in SEQUENCES), ("s21_odd_seq", "tpu")])
@BOTH_DTYPES
def test_averages_and_images_match_the_papers_equations(name, platform, dtype, tolerance):
    values, meta = golden(f"paper_{name}")
    with jax.enable_x64(dtype == "float64"), tracing_for(platform):
        start = (jnp.zeros(channels_last(values["abar0"], dtype).shape, dtype), jnp.float32(0))
        replay(values, dtype, start, decay=meta["v"], band=meta["band"], key="abar", tolerance=tolerance)


@pytest.mark.extended
@pytest.mark.parametrize(("name", "platform"), [*((name, "cpu") for name in SINGLE), ("s61_self", "tpu")])
@BOTH_DTYPES
def test_normalisation_of_images_with_empty_bins_matches_the_paper(name, platform, dtype, tolerance):
    values, meta = golden(f"paper_{name}")
    with jax.enable_x64(dtype == "float64"), tracing_for(platform):
        phase_tolerance = meta["phase_tol"] if dtype == "float64" else None
        images, amplitude = channels_last(values["x0"], dtype), channels_last(values["abar0"], dtype)
        found = normalise(images, amplitude, phase_tolerance=phase_tolerance)
        assert_close(found, channels_last(values["y0"], dtype), tolerance)


@pytest.mark.extended
@pytest.mark.parametrize("name", OFFICIAL)
def test_band_dc_with_decay_0_matches_the_authors_code(name):
    values, meta = golden(f"official_{name}")
    start = (channels_last(values["amp_in"], jnp.float32), jnp.float32(meta["fix_amp"]))
    replay(values, jnp.float32, start, decay=0, band="dc", key="amp", tolerance=1e-5)


@pytest.mark.extended
def test_an_all_black_first_batch_counts_in_the_average():
    """Theirs takes an average that sums to 0 for none, and starts again with the second batch."""
    values, _ = golden("official_s10_allzero_batch")
    black, images = channels_last(values["x0"], jnp.float32), channels_last(values["x1"], jnp.float32)
    mask = jnp.ones(len(black))
    average, count = update_average(jnp.zeros(black.shape[1:]), jnp.float32(0), black, mask, decay=0)
    assert_close(average, channels_last(values["amp0"], jnp.float32), 1e-6)
    assert_close(normalise(black, average, band="dc"), channels_last(values["y0"], jnp.float32), 1e-6)
    kept, count = update_average(average, count, images, mask, decay=0)
    assert count == 2 and not np.any(kept)
    restarted, _ = update_average(average, jnp.float32(0), images, mask, decay=0)
    assert_close(restarted, channels_last(values["amp1"], jnp.float32), 1e-5)
    assert_close(normalise(images, restarted, band="dc"), channels_last(values["y1"], jnp.float32), 1e-5)


def test_the_server_averages_amplitudes_with_equal_weights():
    values, _ = golden("server_s50")
    found = tree.weighted_sum(jnp.asarray(values["abars"]), jnp.full(4, 0.25))
    assert_close(found, values["out"], 1e-9)


# ---- properties ------------------------------------------------------------------------------------------------------
SHAPE = (2, 5, 6, 2)
AMPLITUDE = 1 + np.abs(np.fft.fft2(np.random.default_rng(0).normal(size=SHAPE[1:]), axes=(0, 1)))
BANDS = ("full", "dc", 0.25)
images_of_noise = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).normal(0.3, 1, SHAPE))
COMPILED = jax.jit(normalise, static_argnames="band")


@pytest.fixture(autouse=True, scope="module")
def float64_enabled():
    with jax.enable_x64(True):
        yield


def psi(x, amplitude=AMPLITUDE, band="full"):
    return np.asarray(COMPILED(jnp.asarray(x), jnp.asarray(amplitude), band=band))


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(images_of_noise)
def test_normalisation_keeps_phases_and_sets_the_amplitude(x):
    transform, new = np.fft.fft2(x, axes=(1, 2)), np.fft.fft2(psi(x), axes=(1, 2))
    close(np.abs(new), np.broadcast_to(AMPLITUDE, SHAPE))
    close(new / np.abs(new), transform / np.abs(transform))
    amplitude, phase = spectrum(jnp.asarray(x))
    close(amplitude * np.exp(1j * phase), transform)


@settings(max_examples=15, deadline=None)
@given(images_of_noise, st.sampled_from(BANDS), st.floats(0.1, 10))
def test_normalisation_is_idempotent_odd_scale_invariant_and_linear_in_the_amplitude(x, band, factor):
    y = psi(x, band=band)
    close(psi(y, band=band), y)
    close(psi(-x, band=band), -y)
    close(psi(factor * x), psi(x))
    close(psi(x, factor * AMPLITUDE), factor * psi(x))


@settings(max_examples=15, deadline=None)
@given(images_of_noise, st.sampled_from(BANDS), st.integers(0, 4), st.integers(0, 5))
def test_its_own_amplitude_restores_an_image_and_shifts_commute(x, band, down, right):
    own = np.abs(np.fft.fft2(x[0], axes=(0, 1)))
    close(psi(x, own, band)[0], x[0])
    close(psi(np.roll(x, (down, right), (1, 2)), band=band), np.roll(psi(x, band=band), (down, right), (1, 2)))


@settings(max_examples=15, deadline=None)
@given(images_of_noise)
def test_the_energy_is_that_of_the_amplitude_and_band_dc_changes_the_mean_only(x):
    close(np.sum(psi(x) ** 2, (1, 2)), np.broadcast_to(np.sum(AMPLITUDE**2, (0, 1)) / 30, (2, 2)))
    moved = psi(x, band="dc") - x
    close(moved, np.broadcast_to(moved.mean((1, 2), keepdims=True), SHAPE))


@settings(max_examples=15, deadline=None)
@given(hnp.arrays(np.float64, (3, *SHAPE), elements=st.floats(-1, 1)), st.permutations([0, 1]))
def test_the_average_of_batches_matches_its_definition(batches, order):
    def run(decay, init="first", batches=batches):
        average, count = jnp.zeros(SHAPE[1:]), jnp.float32(0)
        for x in batches:
            average, count = update_average(average, count, jnp.asarray(x), jnp.ones(2), decay, init)
        return np.asarray(average)

    means = np.abs(np.fft.fft2(batches, axes=(2, 3))).mean(1)
    close(run(1.0), means[-1])
    close(run(0.0), means[0])
    close(run(0.1), run(0.1, batches=batches[:, order]))
    zero = 0.1 * (means[2] + 0.9 * means[1] + 0.81 * means[0])
    close(run(0.1, "zero"), zero)
    close(run(0.1, "debias"), zero / (1 - 0.9**3))


@pytest.mark.extended
def test_nan_in_padding_does_not_change_the_average():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 5, 1))).at[2].set(jnp.nan)
    start = (jnp.full((4, 5, 1), 7.0), jnp.float32(3))
    average, count = update_average(*start, x, jnp.array([1.0, 1.0, 0.0]))
    expected, _ = update_average(*start, x[:2], jnp.ones(2))
    close(average, expected)
    assert count == 4
    average, count = update_average(*start, x, jnp.zeros(3))
    np.testing.assert_array_equal(average, start[0])
    assert count == 3


def test_a_numeric_band_selects_the_central_square_of_frequencies():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 8, 10, 1)))
    changed = ~np.isclose(
        np.fft.fft2(normalise(x, jnp.full((8, 10, 1), 99.0), band=0.3) - x, axes=(1, 2))[0, ..., 0], 0
    )
    rows, columns = np.abs(np.fft.fftfreq(8) * 8), np.abs(np.fft.fftfreq(10) * 10)
    np.testing.assert_array_equal(changed, (rows[:, None] <= 2) & (columns <= 2))
