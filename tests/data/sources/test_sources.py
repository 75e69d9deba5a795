"""Sources by name, and scikit-learn's digits."""

import numpy as np
import pytest

from fedjax_het.data import load
from fedjax_het.errors import InputError


def test_digits_use_the_whole_range_of_a_byte():
    digits = load("digits")
    assert digits.inputs.shape == (1797, 8, 8, 1)
    assert digits.inputs.dtype == np.uint8
    assert set(np.unique(digits.inputs)) == {round(value * 255 / 16) for value in range(17)}
    assert np.bincount(digits.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert not digits.is_test.any()


def test_digits_have_masks_of_their_strokes():
    plain, masked = load("digits"), load("digits", masks=True)
    assert masked.is_segmentation and masked.class_names == ("background", "stroke")
    np.testing.assert_array_equal(masked.labels, plain.inputs[..., 0] >= 128)
    np.testing.assert_array_equal(masked.inputs, plain.inputs)


@pytest.mark.parametrize("masks", [False, True])
def test_digits_are_made_into_domains_of_equal_size(masks):
    plain, made = load("digits", masks=masks), load("digits", masks=masks, domains=True)
    assert made.domain_names == ("plain", "inverted", "rotated", "noisy")
    assert np.bincount(made.domains).tolist() == [450, 449, 449, 449]
    before, after = ([each.inputs[made.domains == i] for i in range(4)] for each in (plain, made))
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1], 255 - before[1])
    np.testing.assert_array_equal(after[2], np.rot90(before[2], axes=(1, 2)))
    noise = (after[3].astype(int) - before[3])[(before[3] > 100) & (before[3] < 160)]
    assert 40 < noise.std() < 55 and abs(noise.mean()) < 3
    turned = made.domains == 2
    expected = np.rot90(plain.labels[turned], axes=(1, 2)) if masks else plain.labels[turned]
    np.testing.assert_array_equal(made.labels[turned], expected)
    np.testing.assert_array_equal(made.labels[~turned], plain.labels[~turned])
    np.testing.assert_array_equal(made.inputs, load("digits", domains=True).inputs)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digit", {}, "called 'digit'. Did you mean 'digits'"),
        ("arrays", {}, "missing a required argument: 'path'.*It takes arrays"),
        ("folders", {"path": "x", "sise": 3}, "unexpected keyword argument 'sise'.*size"),
    ],
)
def test_unknown_names_and_options_are_refused(name, options, message):
    with pytest.raises(InputError, match=message):
        load(name, **options)
