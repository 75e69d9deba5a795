"""Partitions: properties of all of them, and the skew of each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.data import (
    by_domain,
    dirichlet,
    domain_dirichlet,
    iid,
    quantity_skew,
    resampled_dirichlet,
    shards,
    within_domains,
)
from fedjax_het.data.assignment import LabeledExamples
from fedjax_het.errors import InputError

ALPHAS = st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 1e6])
PARTITION = st.one_of(
    st.builds(iid),
    st.builds(dirichlet, ALPHAS, st.booleans(), st.integers(0, 3)),
    st.builds(quantity_skew, ALPHAS, st.integers(0, 3)),
    st.builds(shards, st.integers(1, 3)),
    st.builds(by_domain),
    st.builds(domain_dirichlet, ALPHAS),
)


def labeled_examples(num: int, num_classes: int = 5, num_domains: int = 3, seed: int = 0) -> LabeledExamples:
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(num) % num_classes).astype(np.int32)
    return LabeledExamples(labels, rng.permutation(np.arange(num) % num_domains).astype(np.int32), num_classes)


def draw(partition, examples, num_clients, seed=0):
    return partition(examples, num_clients, np.random.default_rng(seed))


@pytest.mark.extended
@settings(max_examples=150, deadline=None)
@given(PARTITION, st.integers(60, 200), st.integers(5, 12), st.integers(0, 50))
def test_every_example_is_used_once_and_depends_on_the_seed(partition, num, num_clients, seed):
    examples = labeled_examples(num, seed=seed)
    parts = draw(partition, examples, num_clients, seed)
    assert len(parts) == num_clients
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(num))
    for part, again in zip(parts, draw(partition, examples, num_clients, seed), strict=True):
        np.testing.assert_array_equal(part, np.sort(part))
        np.testing.assert_array_equal(part, again)


def test_clients_that_resample_do_not_depend_on_the_population():
    examples = labeled_examples(50)
    few, many = (draw(resampled_dirichlet(0.3, 20), examples, num) for num in (3, 200))
    for client, (positions, expected) in enumerate(zip(few, many[:3], strict=True)):
        np.testing.assert_array_equal(positions, expected, err_msg=str(client))
    assert {len(part) for part in many} == {20}
    assert len({tuple(part) for part in many}) == 200
    assert len(np.unique(np.concatenate(many))) == 50
    shares = np.array([np.bincount(examples.labels[part], minlength=5) for part in many]) / 20
    np.testing.assert_allclose(shares.mean(axis=0), 0.2, atol=0.06)
    np.testing.assert_allclose(shares.var(), 0.2 * 0.8 / (1 + 0.3 * 5), rtol=0.25)  # of Dirichlet(0.3), and of 20 draws
    assert draw(resampled_dirichlet(1e-6, 20), examples, 4)[0].size == 20


@settings(deadline=None)
@given(st.sampled_from([dirichlet, quantity_skew, domain_dirichlet]), ALPHAS, st.integers(0, 8), st.integers(0, 50))
def test_min_examples_is_met(factory, alpha, min_examples, seed):
    parts = draw(factory(alpha, min_examples=min_examples), labeled_examples(120, seed=seed), 12, seed)
    assert min(len(part) for part in parts) >= min_examples


def test_iid_sizes_differ_by_at_most_one():
    assert sorted(len(part) for part in draw(iid(), labeled_examples(23), 5)) == [4, 4, 5, 5, 5]


def test_quantity_skew_follows_alpha():
    examples = labeled_examples(2000)
    even = [len(part) for part in draw(quantity_skew(1e6), examples, 10)]
    skewed = [len(part) for part in draw(quantity_skew(1e-3), examples, 10)]
    assert max(even) - min(even) <= 4
    assert max(skewed) > 1900


def test_by_domain_gives_each_client_one_domain():
    examples = labeled_examples(30)
    for domain, part in enumerate(draw(by_domain(), examples, 3)):
        np.testing.assert_array_equal(part, np.flatnonzero(examples.domains == domain))


def test_more_clients_than_domains_cut_each_domain_evenly():
    domains = np.repeat([0, 1, 2], [10, 31, 12]).astype(np.int32)
    parts = draw(by_domain(), LabeledExamples(np.zeros(53, np.int32), domains, 1), 7)
    assert [np.unique(domains[part]).tolist() for part in parts] == [[0], [0], [1], [1], [1], [2], [2]]
    assert sorted(len(part) for part in parts) == [5, 5, 6, 6, 10, 10, 11]


def test_domain_dirichlet_skews_labels_within_domains():
    examples = labeled_examples(600)
    parts = draw(domain_dirichlet(1e-6, min_examples=0), examples, 9)
    assert all(len(np.unique(examples.domains[part])) <= 1 for part in parts)
    counts = np.stack([np.bincount(examples.labels[part], minlength=5) for part in parts])
    assert (counts > 0).sum() == 3 * 5  # each class of each domain is with one client


def test_a_custom_partition_runs_within_domains():
    def first_takes_all(examples, num_clients, rng):
        return [np.arange(len(examples.labels)), *[np.zeros(0, int)] * (num_clients - 1)]

    assert [len(part) for part in draw(within_domains(first_takes_all), labeled_examples(30), 6)] == [10, 0] * 3


@pytest.mark.parametrize("alpha", [0, -1.0, np.nan, np.inf])
@pytest.mark.parametrize("factory", [dirichlet, quantity_skew, domain_dirichlet])
def test_alpha_must_be_positive(factory, alpha):
    with pytest.raises(InputError, match="alpha: must be a finite number above 0"):
        factory(alpha)


@pytest.mark.parametrize(
    ("partition", "num_clients", "message"),
    [
        (iid(), 31, "31 clients with at least 1 each need 31 examples, but there are 30"),
        (iid(), 0, "num_clients: must be at least 1"),
        (dirichlet(1.0, min_examples=0), 31, "31 clients"),
        (dirichlet(1.0, equal_sizes=True), 31, "31 clients"),
        (dirichlet(1.0, min_examples=4), 10, "need 40 examples"),
        (quantity_skew(1.0, min_examples=4), 10, "need 40 examples"),
        (shards(2), 31, "31 clients"),
        (by_domain(), 2, "2 clients for 3 domains"),
        (domain_dirichlet(1.0), 2, "2 clients for 3 domains"),
        (domain_dirichlet(1.0, min_examples=9), 6, "domain 0: 2 clients with at least 9"),
    ],
)
def test_impossible_partitions_are_named_in_the_error(partition, num_clients, message):
    with pytest.raises(InputError, match=message):
        draw(partition, labeled_examples(30), num_clients)


def with_sizes(sizes) -> LabeledExamples:
    labels = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    return LabeledExamples(labels, np.zeros(len(labels), np.int32), len(sizes))


def counts_of(partition, examples, num_clients, seed=0):
    parts = partition(examples, num_clients, np.random.default_rng(seed))
    return np.stack([np.bincount(examples.labels[part], minlength=examples.num_classes) for part in parts])


@pytest.mark.parametrize("equal_sizes", [False, True])
def test_large_alpha_is_near_uniform(equal_sizes):
    counts = counts_of(dirichlet(1e6, equal_sizes), with_sizes([100] * 6), 10)
    assert np.abs(counts - 10).max() <= 1


@pytest.mark.parametrize("seed", range(5))
def test_small_alpha_gives_a_class_to_one_client(seed):
    counts = counts_of(dirichlet(1e-6, min_examples=0), with_sizes([50] * 8), 5, seed)
    assert ((counts > 0).sum(axis=0) == 1).all()


@pytest.mark.parametrize("seed", range(5))
def test_small_alpha_with_equal_sizes_gives_few_classes(seed):
    counts = counts_of(dirichlet(1e-6, equal_sizes=True), with_sizes([100] * 10), 10, seed)
    mixed = counts_of(dirichlet(1e6, equal_sizes=True), with_sizes([100] * 10), 10, seed)
    assert (counts.max(axis=1) / 100).mean() > 0.6
    assert (mixed > 0).all()
    np.testing.assert_array_equal(counts.sum(axis=1), 100)


@settings(deadline=None)
@given(st.integers(1, 40), st.sampled_from([1e-6, 0.1, 1e6]), st.integers(0, 30))
def test_equal_sizes_differ_by_at_most_one(num_clients, alpha, seed):
    sizes = counts_of(dirichlet(alpha, equal_sizes=True), with_sizes([31, 5, 17]), num_clients, seed).sum(axis=1)
    assert sizes.max() - sizes.min() <= 1


def test_a_single_client_has_all_examples():
    np.testing.assert_array_equal(counts_of(dirichlet(0.1), with_sizes([4, 0, 3]), 1), [[4, 0, 3]])
    np.testing.assert_array_equal(counts_of(dirichlet(0.1, equal_sizes=True), with_sizes([4, 0, 3]), 1), [[4, 0, 3]])


def test_rounding_gives_many_clients_similar_numbers_of_examples():
    sizes = counts_of(dirichlet(1e6), with_sizes([60] * 100), 100).sum(axis=1)  # 0.6 of each class a client
    assert sizes.min() > 40
    assert sizes.max() < 80


@settings(deadline=None)
@given(st.integers(4, 30), st.integers(1, 4), st.integers(0, 50))
def test_every_client_has_exactly_its_number_of_classes(num_clients, classes_per_client, seed):
    sizes = np.random.default_rng(seed).integers(30, 90, 4)
    counts = counts_of(shards(classes_per_client), with_sizes(sizes), num_clients, seed)
    assert ((counts > 0).sum(axis=1) == classes_per_client).all()
    np.testing.assert_array_equal(counts.sum(axis=0), sizes)


def test_shards_of_equal_classes_make_equal_clients():
    counts = counts_of(shards(2), with_sizes([200] * 10), 100)
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
def test_classes_per_client_out_of_range_is_refused(classes_per_client, message):
    with pytest.raises(InputError, match=message):
        counts_of(shards(classes_per_client), with_sizes([10] * 4), 2)
