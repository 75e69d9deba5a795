import jax.numpy as jnp
import numpy as np

from fedjax_het.labels import PADDING, is_counted, mean_over_labels, mean_per_example

VALUES = jnp.array([[1.0, 2.0, 60.0], [4.0, 70.0, 80.0], [90.0, 91.0, 92.0]])
LABELS = jnp.array([[0, 1, PADDING], [2, PADDING, PADDING], [0, 0, 0]])
MASK = jnp.array([1.0, 1.0, 0.0])


def test_padding_is_left_out_of_means_over_sequences():
    assert is_counted(LABELS).sum() == 6
    np.testing.assert_allclose(mean_per_example(VALUES, LABELS), [1.5, 4.0, 91.0])
    np.testing.assert_allclose(mean_over_labels(VALUES, LABELS, MASK), 7 / 3, rtol=1e-6)


def test_a_batch_of_padding_alone_has_the_mean_zero():
    assert mean_over_labels(VALUES, jnp.full((3, 3), PADDING), MASK) == 0
    assert mean_over_labels(VALUES, LABELS, jnp.zeros(3)) == 0


def test_examples_and_pixels_are_averaged_as_before():
    assert mean_over_labels(VALUES[:, 0], LABELS[:, 0], MASK) == 2.5
    pixels, masks = VALUES.reshape(3, 3, 1), jnp.zeros((3, 3, 1), jnp.uint8)
    np.testing.assert_allclose(mean_over_labels(pixels, masks, MASK), VALUES[:2].mean(), rtol=1e-6)
