"""Sources by name, and the one that needs no files."""

import numpy as np
import pytest

from fedjax_het.data import load
from fedjax_het.errors import InputError


def test_digits_fill_the_range_of_a_byte():
    digits = load("digits")
    assert digits.inputs.shape == (1797, 8, 8, 1)
    assert digits.inputs.dtype == np.uint8
    assert set(np.unique(digits.inputs)) == {round(value * 255 / 16) for value in range(17)}
    assert np.bincount(digits.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert not digits.is_test.any()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digit", {}, "called 'digit'. Did you mean 'digits'"),
        ("arrays", {}, "missing a required argument: 'path'.*It takes arrays"),
        ("folders", {"path": "x", "sise": 3}, "unexpected keyword argument 'sise'.*size"),
    ],
)
def test_unknown_names_and_options(name, options, message):
    with pytest.raises(InputError, match=message):
        load(name, **options)
