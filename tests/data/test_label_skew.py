"""Partitions in which clients differ in their classes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.data.partition import Labelled, dirichlet, shards
from fedjax_het.errors import InputError


def of_sizes(sizes) -> Labelled:
    labels = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    return Labelled(labels, np.zeros(len(labels), np.int32), len(sizes))


def counts_of(partition, examples, num_clients, seed=0):
    parts = partition(examples, num_clients, np.random.default_rng(seed))
    return np.stack([np.bincount(examples.labels[part], minlength=examples.num_classes) for part in parts])


@pytest.mark.parametrize("equal_sizes", [False, True])
def test_large_alpha_is_near_uniform(equal_sizes):
    counts = counts_of(dirichlet(1e6, equal_sizes), of_sizes([100] * 6), 10)
    assert np.abs(counts - 10).max() <= 1


@pytest.mark.parametrize("seed", range(5))
def test_small_alpha_gives_a_class_to_one_client(seed):
    counts = counts_of(dirichlet(1e-6, min_examples=0), of_sizes([50] * 8), 5, seed)
    assert ((counts > 0).sum(axis=0) == 1).all()


@pytest.mark.parametrize("seed", range(5))
def test_small_alpha_with_equal_sizes_gives_few_classes(seed):
    counts = counts_of(dirichlet(1e-6, equal_sizes=True), of_sizes([100] * 10), 10, seed)
    mixed = counts_of(dirichlet(1e6, equal_sizes=True), of_sizes([100] * 10), 10, seed)
    assert (counts.max(axis=1) / 100).mean() > 0.6
    assert (mixed > 0).all()
    np.testing.assert_array_equal(counts.sum(axis=1), 100)


@settings(deadline=None)
@given(st.integers(1, 40), st.sampled_from([1e-6, 0.1, 1e6]), st.integers(0, 30))
def test_equal_sizes_differ_by_at_most_one(num_clients, alpha, seed):
    sizes = counts_of(dirichlet(alpha, equal_sizes=True), of_sizes([31, 5, 17]), num_clients, seed).sum(axis=1)
    assert sizes.max() - sizes.min() <= 1


def test_a_class_that_is_absent_and_one_client_alone():
    np.testing.assert_array_equal(counts_of(dirichlet(0.1), of_sizes([4, 0, 3]), 1), [[4, 0, 3]])
    np.testing.assert_array_equal(counts_of(dirichlet(0.1, equal_sizes=True), of_sizes([4, 0, 3]), 1), [[4, 0, 3]])


def test_many_clients_share_rounding_fairly():
    sizes = counts_of(dirichlet(1e6), of_sizes([60] * 100), 100).sum(axis=1)  # 0.6 of each class a client
    assert sizes.min() > 40
    assert sizes.max() < 80


@settings(deadline=None)
@given(st.integers(4, 30), st.integers(1, 4), st.integers(0, 50))
def test_every_client_has_exactly_its_number_of_classes(num_clients, classes_per_client, seed):
    sizes = np.random.default_rng(seed).integers(30, 90, 4)
    counts = counts_of(shards(classes_per_client), of_sizes(sizes), num_clients, seed)
    assert ((counts > 0).sum(axis=1) == classes_per_client).all()
    np.testing.assert_array_equal(counts.sum(axis=0), sizes)


def test_shards_of_equal_classes_make_equal_clients():
    counts = counts_of(shards(2), of_sizes([200] * 10), 100)
    np.testing.assert_array_equal(counts.sum(axis=1), 20)
    assert len({tuple(np.flatnonzero(row)) for row in counts}) > 15  # of 45 possible pairs


@pytest.mark.parametrize(
    ("classes_per_client", "message"),
    [
        (1, "2 clients of 1 classes each take 2 shards, but the 4 classes"),
        (5, "make 4 to 8"),
        (0, "not 0"),
        (1.5, "not 1.5"),
    ],
)
def test_classes_per_client_out_of_range(classes_per_client, message):
    with pytest.raises(InputError, match=message):
        counts_of(shards(classes_per_client), of_sizes([10] * 4), 2)
