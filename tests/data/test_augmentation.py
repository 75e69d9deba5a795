"""Augmentations of images and masks, independent of the other examples of the batch."""

import colorsys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.data import augmentation
from fedjax_het.data.augmentation import images
from fedjax_het.errors import InputError

KEY = make_key(3)
KEYS = jax.random.split(KEY, 20)
IMAGE = jax.random.uniform(KEY, (8, 8, 3))
MASK = jnp.arange(64).reshape(8, 8)
EVERYTHING = {
    "crop": (0.5, 1.0),
    "rotation": 15,
    "quarter_turns": (0, 1, 2, 3),
    "flip": 0.5,
    "brightness": 0.4,
    "contrast": 0.4,
    "saturation": 0.4,
    "hue": 0.4,
    "grayscale": 0.3,
}


def ramp(size=32):
    """An image whose two channels are the row and the column of each pixel's center."""
    rows, columns = jnp.mgrid[:size, :size] + 0.5
    return jnp.stack([rows, columns], axis=-1)


@pytest.mark.extended
@pytest.mark.parametrize("key", KEYS[:8])
def test_a_crop_is_a_straight_window_of_the_requested_area_and_ratio(key):
    cropped, _ = jax.jit(augmentation.crop_and_resize((0.3, 0.6), (0.5, 1.5)))(key, ramp(), None)
    inner = np.asarray(cropped[2:-2, 2:-2])  # away from the edges
    height, width = np.diff(inner[:, 0, 0]) * 32, np.diff(inner[0, :, 1]) * 32
    np.testing.assert_allclose(height, height[0], rtol=1e-3)
    np.testing.assert_allclose(width, width[0], rtol=1e-3)
    assert 0.3 - 1e-3 <= height[0] * width[0] / 32**2 <= 0.6 + 1e-3
    assert 0.5 - 1e-3 <= width[0] / height[0] <= 1.5 + 1e-3
    assert inner.min() >= 0
    assert inner.max() <= 32


@pytest.mark.extended
def test_the_whole_image_as_a_crop_is_the_image():
    cropped, mask = jax.jit(augmentation.crop_and_resize((1.0, 1.0), (1.0, 1.0)))(KEY, IMAGE, MASK)
    np.testing.assert_allclose(cropped, IMAGE, atol=1e-6)
    np.testing.assert_array_equal(mask, MASK)


@pytest.mark.extended
@pytest.mark.parametrize("transform", [augmentation.crop_and_resize((0.3, 0.8)), augmentation.rotate(40)])
@pytest.mark.parametrize("key", KEYS[:5])
def test_a_mask_moves_with_its_image(transform, key):
    """Inside 8 x 8 blocks, away from their edges and from the outside, image and mask show the same block."""
    blocks = jnp.kron(jnp.arange(1, 17).reshape(4, 4), jnp.ones((8, 8), int))
    image, mask = jax.jit(transform)(key, blocks[..., None].astype(float), blocks)
    is_inside = np.abs(image[..., 0] - np.round(image[..., 0])) < 1e-4
    assert is_inside.mean() > 0.4
    np.testing.assert_array_equal(mask[is_inside], np.round(image[..., 0])[is_inside])


@pytest.mark.parametrize("key", KEYS[:5])
def test_a_rotation_is_around_the_center_by_at_most_the_angle(key):
    turned, _ = jax.jit(augmentation.rotate(30))(key, ramp(33) - 16.5, None)
    np.testing.assert_allclose(turned[16, 16], 0, atol=1e-4)
    angle = np.arctan2(*np.asarray(turned[16, 20]))
    assert 0 < abs(angle) <= np.deg2rad(30) + 1e-4
    np.testing.assert_allclose(np.linalg.norm(turned[16, 20]), 4, rtol=1e-4)


@pytest.mark.parametrize("turn", range(5))
def test_quarter_turns_are_those_of_numpy(turn):
    image, mask = jax.jit(augmentation.rotate_by_quarter_turns((turn,)))(KEY, IMAGE, MASK)
    np.testing.assert_array_equal(image, np.rot90(IMAGE, turn))
    np.testing.assert_array_equal(mask, np.rot90(MASK, turn))


@pytest.mark.parametrize(("mode", "axes"), [("horizontal", (1,)), ("vertical", (0,)), ("both", (0, 1))])
def test_flips_are_those_of_numpy(mode, axes):
    image, mask = jax.jit(augmentation.flip_randomly(1.0, (mode,)))(KEY, IMAGE, MASK)
    np.testing.assert_array_equal(image, np.flip(IMAGE, axes))
    np.testing.assert_array_equal(mask, np.flip(MASK, axes))


def test_flips_have_the_requested_probability_in_every_mode():
    keys = jax.random.split(KEY, 4000)
    flip = augmentation.flip_randomly(0.75, tuple(augmentation.FLIP_MODES))
    flipped = jax.jit(jax.vmap(lambda key: flip(key, IMAGE, MASK)[1]))(keys)
    for axes in ((0,), (1,), (0, 1)):
        share = np.mean((flipped == np.flip(MASK, axes)).all(axis=(1, 2)))
        assert abs(share - 0.25) < 0.03


@pytest.mark.parametrize("key", KEYS[:5])
def test_brightness_and_contrast_are_blends(key):
    image, own = IMAGE / 4 + 0.3, jax.random.split(key, 4)
    factor = jax.random.uniform(own[0], (), minval=0.6, maxval=1.4)
    bright, _ = jax.jit(augmentation.jitter_colors(brightness=0.4))(key, image, None)
    np.testing.assert_allclose(bright, image * factor, rtol=1e-5)
    factor = jax.random.uniform(own[1], (), minval=0.6, maxval=1.4)
    grey = np.mean(np.asarray(image) @ [0.299, 0.587, 0.114])
    contrasted, _ = jax.jit(augmentation.jitter_colors(contrast=0.4))(key, image, None)
    np.testing.assert_allclose(contrasted, factor * image + (1 - factor) * grey, rtol=1e-5)


@pytest.mark.parametrize("key", KEYS[:5])
def test_hue_shifts_as_in_colorsys(key):
    turned, _ = jax.jit(augmentation.jitter_colors(hue=0.5))(key, IMAGE, None)
    shift = float(jax.random.uniform(jax.random.split(key, 4)[3], (), minval=-0.5, maxval=0.5))
    h, s, v = colorsys.rgb_to_hsv(*map(float, IMAGE[2, 5]))
    np.testing.assert_allclose(turned[2, 5], colorsys.hsv_to_rgb((h + shift) % 1, s, v), atol=1e-5)


def test_grey_images_keep_their_colors():
    grey = jnp.repeat(IMAGE[..., :1], 3, axis=-1)
    jittered, _ = jax.jit(augmentation.jitter_colors(saturation=0.9, hue=0.5))(KEY, grey, None)
    np.testing.assert_allclose(jittered, grey, atol=1e-6)
    dropped, _ = jax.jit(augmentation.drop_colors(1.0))(KEY, IMAGE, None)
    np.testing.assert_allclose(dropped, np.broadcast_to(dropped[..., :1], dropped.shape))


@pytest.mark.slow
@pytest.mark.parametrize("labels", [jnp.arange(6), jnp.arange(6 * 64).reshape(6, 8, 8)])
def test_an_example_does_not_depend_on_its_batch(labels):
    augment = jax.jit(images(**EVERYTHING))
    batch = jax.random.uniform(KEY, (6, 8, 8, 3))
    inputs, moved = augment(KEY, batch, labels)
    first, also_moved = augment(KEY, batch[:4], labels[:4])
    np.testing.assert_allclose(inputs[:4], first, atol=1e-6)
    np.testing.assert_array_equal(moved[:4], also_moved)
    assert 0 <= inputs.min() <= inputs.max() <= 1
    assert not np.allclose(inputs, augment(make_key(4), batch, labels)[0])


def test_the_defaults_change_nothing():
    batch = jax.random.uniform(KEY, (2, 8, 6, 1))
    np.testing.assert_array_equal(images()(KEY, batch, jnp.arange(2))[0], batch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": (0.9, 0.2)}, "crop.*smaller first"),
        ({"crop": (0.5, 1), "ratio": (0, 1)}, "ratio"),
        ({"rotation": 200}, "rotation.*180"),
        ({"quarter_turns": ()}, "quarter_turns"),
        ({"flip": 2.0}, r"flip: .* in \[0, 1\]"),
        ({"flip": 0.5, "flip_modes": ("horizonal",)}, "horizonal.*horizontal"),
        ({"hue": 0.7}, "hue.*0.5"),
        ({"contrast": -1}, "contrast: .* of at least 0"),
        ({"grayscale": 1.5}, r"grayscale: .* in \[0, 1\]"),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        images(**options)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((2, 5), {"flip": 0.5}, "needs images"),
        ((2, 8, 8, 1), {"hue": 0.1}, "3 channels"),
        ((2, 8, 6, 3), {"quarter_turns": (0, 1)}, "not square"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(shape, options, message):
    with pytest.raises(InputError, match=message):
        jax.eval_shape(images(**options), KEY, jnp.zeros(shape), jnp.zeros(2, int))
