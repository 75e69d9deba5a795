"""Poisoned training examples: changed labels, and the examples that measure the success of a backdoor."""

import numpy as np
import pytest

from fedjax_het import data
from fedjax_het.data.poisoning import BACKDOOR
from fedjax_het.errors import InputError


@pytest.fixture(scope="module")
def federation():
    return data.toy(num_clients=6, image=(6, 6, 1), num_classes=4, unseen_clients=1)


def rows_of(federation, client, part="train"):
    rows = getattr(federation.data, part)
    return rows.index[client][: rows.count[client]]


def test_labels_of_the_attackers_training_examples_alone_are_flipped(federation):
    before = np.array(federation.examples.labels)
    poisoned = data.flip_labels(clients=(1, 4))(federation)
    changed = np.concatenate([rows_of(federation, 1), rows_of(federation, 4)])
    labels, others = poisoned.examples.labels, np.setdiff1d(np.arange(len(before)), changed)
    np.testing.assert_array_equal(labels[changed], 3 - before[changed])
    np.testing.assert_array_equal(labels[others], before[others])
    np.testing.assert_array_equal(federation.examples.labels, before)
    assert poisoned.newcomers.examples is poisoned.data.examples
    assert poisoned.fingerprint != federation.fingerprint


def test_a_backdoor_marks_images_and_is_measured_on_marked_ones_of_other_classes(federation):
    poisoned = data.backdoor(2, 3, 0.5, clients=(0,))(federation)
    own = rows_of(federation, 0)
    half = own[: -(-len(own) // 2)]
    inputs, labels = poisoned.examples[:2]
    assert np.all(labels[half] == 2)
    brightest = inputs.max()
    assert np.all(inputs[half][:, -3:, -3:] == brightest)
    rest = own[len(half) :]
    np.testing.assert_array_equal(inputs[rest], federation.examples.inputs[rest])
    shown = poisoned.unseen[BACKDOOR]
    test = federation.test.index[: federation.test.count]
    assert shown.count == np.sum(federation.examples.labels[test] != 2)
    marked = shown.index[: shown.count]
    assert np.all(labels[marked] == 2) and np.all(inputs[marked][:, -3:, -3:] == brightest)
    np.testing.assert_array_equal(inputs[test], federation.examples.inputs[test])


def test_backdoors_that_cannot_be_are_refused(federation):
    with pytest.raises(InputError, match="target: there is no class 9; the last is 3"):
        data.backdoor(9, clients=(0,))(federation)
    with pytest.raises(InputError, match=r"size: a square of 99 pixels is larger than images of"):
        data.backdoor(0, 99, clients=(0,))(federation)
    with pytest.raises(InputError, match="clients: there is no client 6"):
        data.flip_labels(clients=(6,))(federation)
    with pytest.raises(InputError, match="fraction: give the fraction"):
        data.flip_labels()
