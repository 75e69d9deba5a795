"""Preparation of inputs for models."""

import jax
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.data.preparation import Preparation, has_means_of_both_signs, moments


def test_bytes_are_mapped_to_the_unit_interval_and_floats_are_unchanged():
    prepare = jax.jit(Preparation())
    np.testing.assert_allclose(prepare(np.array([[0, 51, 255]], np.uint8)), [[0.0, 0.2, 1.0]], rtol=1e-6)
    np.testing.assert_array_equal(prepare(np.array([[-3.0, 7.0]], np.float32)), [[-3.0, 7.0]])


def test_moments_are_those_of_the_chosen_examples_by_channel():
    images = np.random.default_rng(0).integers(0, 256, (150, 4, 3, 2)).astype(np.uint8)
    chosen = np.arange(0, 150, 2)
    mean, deviation = moments(images, chosen)
    np.testing.assert_allclose(mean, (images[chosen] / 255).mean((0, 1, 2)))
    np.testing.assert_allclose(deviation, (images[chosen] / 255).std((0, 1, 2)))


def test_a_constant_channel_is_centered_and_not_divided_by_zero():
    inputs = np.full((3, 2), 4.0, np.float32)
    np.testing.assert_array_equal(Preparation(moments(inputs, np.arange(3)))(inputs), np.zeros((3, 2)))


def test_only_training_is_augmented_before_standardization():
    def augment(key, inputs, labels):
        return inputs + 0.5, labels + 1

    images, labels = np.full((2, 1, 1, 1), 51, np.uint8), np.array([3, 4])
    prepare = Preparation((np.array([0.2]), np.array([0.1])), augment)
    inputs, moved = prepare.for_training(make_key(0), images, labels)
    np.testing.assert_allclose(inputs, 5.0, rtol=1e-5)
    np.testing.assert_array_equal(moved, labels + 1)
    np.testing.assert_allclose(prepare(images), 0.0, atol=1e-6)


def test_channel_means_of_both_signs_are_detected():
    floats, chosen = np.full((150, 4, 3, 2), 0.5, np.float32), np.arange(0, 150, 2)
    floats[..., 1] = -0.5
    floats[1] *= -1  # not among the selected examples
    assert not has_means_of_both_signs(Preparation(), floats, chosen)
    floats[148, ..., 0] = np.linspace(-0.9, 0.8, 12).reshape(4, 3)
    assert has_means_of_both_signs(Preparation(), floats, chosen)
    images = np.random.default_rng(0).integers(0, 256, (150, 4, 3, 2)).astype(np.uint8)
    assert not has_means_of_both_signs(Preparation(), images, chosen)
    standardised = Preparation(moments(images, chosen))
    means = np.asarray(standardised(images[chosen])).mean((1, 2))
    assert (means > 0).any() and (means < 0).any() and has_means_of_both_signs(standardised, images, chosen)
