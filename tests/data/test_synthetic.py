"""Toy federations: their shifts, and a model that learns them."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fedjax_het.data import toy
from fedjax_het.errors import InputError

EVERYTHING = {"test_fraction": 0.0, "client_test_fraction": 0.0}


def test_sizes_rise_over_the_requested_range():
    assert toy(examples_per_client=(10, 60), **EVERYTHING).data.train.count.tolist() == [10, 20, 30, 40, 50, 60]
    assert set(toy(quantity_shift=0.0, **EVERYTHING).data.train.count.tolist()) == {30}


def test_labels_shift_by_the_requested_fraction():
    sizes = {"examples_per_client": (30, 30), "num_classes": 3}
    np.testing.assert_array_equal(toy(label_shift=0.0, **sizes, **EVERYTHING).class_counts, np.full((6, 3), 10))
    np.testing.assert_array_equal(toy(label_shift=1.0, **sizes, **EVERYTHING).class_counts[1], [0, 30, 0])
    np.testing.assert_array_equal(toy(label_shift=0.5, **sizes, **EVERYTHING).class_counts[2], [5, 5, 20])


def test_features_shift_by_the_requested_deviation():
    def spread(shift):
        f = toy(num_clients=40, features=40, feature_shift=shift, label_shift=0.0, **EVERYTHING)
        train = f.data.train
        means = [f.examples.inputs[row[:n]].mean(0) for row, n in zip(train.index, train.count, strict=True)]
        return np.std(means, axis=0).mean()

    assert spread(0.0) < 0.5
    assert spread(4.0) == pytest.approx(4.0, rel=0.15)


@pytest.mark.parametrize("image", [False, True, (7, 5, 3)])
def test_a_linear_model_learns_a_toy_federation(image):
    f = toy(image=image)
    shape = {False: (8,), True: (8, 8, 1)}.get(image, image)
    assert f.examples.inputs.shape[1:] == shape
    inputs = np.asarray(f.prepare(f.examples.inputs)).reshape(len(f.examples.labels), -1)
    rows = np.concatenate([row[:n] for row, n in zip(f.data.train.index, f.data.train.count, strict=True)])
    model = LogisticRegression(C=100, max_iter=2000).fit(inputs[rows], f.examples.labels[rows])
    assert model.score(inputs[f.test.index], f.examples.labels[f.test.index]) > 0.9


def test_data_depend_on_the_seed_and_newcomers_are_additional():
    assert toy().fingerprint == toy().fingerprint
    assert not np.array_equal(toy().examples.inputs, toy(seed=1).examples.inputs)
    f = toy(num_clients=4, unseen_clients=2, valid_fraction=0.2)
    assert (f.num_clients, f.num_newcomers) == (4, 2)
    assert sorted(f.client_names + f.newcomer_names) == [f"client_{i:03d}" for i in range(6)]


def test_a_client_whose_only_example_is_in_the_test_set_remains():
    f = toy(num_clients=5, examples_per_client=(1, 1), test_fraction=0.5)
    assert f.client_names == tuple(f"client_{i:03d}" for i in range(5))
    assert sorted(f.data.train.count.tolist()) == [0] * int(f.test.count) + [1] * (5 - int(f.test.count))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_shift": 1.5}, "label_shift: .*not 1.5"),
        ({"quantity_shift": -1}, "quantity_shift: .*not -1"),
        ({"examples_per_client": (9, 3)}, r"examples_per_client is \(9, 3\)"),
        ({"num_clients": 0}, "come to 0"),
        ({"masks": True}, "masks=True asks for pixels"),
    ],
)
def test_impossible_settings_are_named_in_the_error(options, message):
    with pytest.raises(InputError, match=message):
        toy(**options)


def test_masks_hold_a_box_of_each_example_and_its_pixels_have_one_mean():
    f = toy(image=(8, 6, 1), masks=True, feature_shift=0.0, **EVERYTHING)
    masks = f.examples.labels
    assert masks.shape[1:] == (8, 6)
    areas = (masks > 0).sum(axis=(1, 2))
    assert set(areas.tolist()) == {0, 4 * 3}
    means = [f.examples.inputs[masks == label].mean() for label in range(3)]
    assert np.ptp(means) > 20
