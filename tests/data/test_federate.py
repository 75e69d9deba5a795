"""Federations from data sets: held-out examples, clients and newcomers."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.data import (
    by_domain,
    dirichlet,
    federate,
    iid,
    quantity_skew,
    resampled_dirichlet,
    shards,
    within_domains,
)
from fedjax_het.data.assembly import assemble
from fedjax_het.errors import InputError

DOMAINS = ("art", "photo", "sketch")


def dataset(num=90, own_test=False, own_valid=False, masks=False, seed=0):
    rng = np.random.default_rng(seed)
    return assemble(
        "x",
        rng.integers(0, 256, (num, 4, 4, 3)).astype(np.uint8),
        rng.integers(0, 2, (num, 4, 4)).astype(np.uint8) if masks else rng.permutation(np.arange(num) % 3),
        domains=np.arange(num) % len(DOMAINS),
        domain_names=DOMAINS,
        is_valid=np.arange(num) < 18 if own_valid else None,
        is_test=np.arange(num) >= num - 12 if own_test else None,
    )


def positions(federation):
    """Every position of every table, in one array."""
    groups = [federation.data] + ([federation.newcomers] if federation.newcomers else [])
    tables = [part for data in groups for part in (data.train, data.valid, data.test)]
    ragged = [row[:count] for rows in tables for row, count in zip(rows.index, rows.count, strict=True)]
    flat = [rows.index for rows in (federation.test, *federation.unseen.values()) if rows is not None]
    return np.concatenate(ragged + flat)


FRACTIONS = st.just(0.0) | st.floats(0.001, 0.45)


@pytest.mark.extended
@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([iid(), by_domain(), dirichlet(1e-3), dirichlet(0.5, equal_sizes=True), quantity_skew(0.1)]),
    st.integers(3, 6),
    st.integers(0, 3),
    FRACTIONS,
    FRACTIONS,
    FRACTIONS,
    st.sets(st.sampled_from(DOMAINS), max_size=2),
    st.sampled_from([(False, False), (True, False), (True, True)]),
    st.booleans(),
    st.integers(0, 99),
)
def test_every_example_is_in_exactly_one_table(
    partition, num_clients, unseen_clients, valid, client_test, test, unseen, tests, own_valid, seed
):
    own_test, local_test = tests
    federation = federate(
        dataset(own_test=own_test, own_valid=own_valid),
        partition,
        num_clients,
        seed=seed,
        valid_fraction=valid,
        client_test_fraction=client_test,
        test_fraction=test,
        unseen_domains=sorted(unseen),
        unseen_clients=unseen_clients,
        local_test=local_test,
    )
    np.testing.assert_array_equal(np.sort(positions(federation)), np.arange(90))
    assert (federation.num_clients, federation.num_newcomers) == (num_clients, unseen_clients)
    assert (federation.data.train.count >= 1).all() or own_valid or local_test


def test_the_common_test_set_is_the_published_one_of_the_seen_domains():
    federation = federate(dataset(own_test=True), iid(), 4, unseen_domains=["photo"])
    expected = [i for i in range(78, 90) if i % 3 != 1]
    np.testing.assert_array_equal(federation.test.index, expected)
    np.testing.assert_array_equal(federation.unseen["photo"].index, np.arange(1, 90, 3))


def test_a_client_s_validation_set_is_its_part_of_the_published_split():
    federation = federate(dataset(own_valid=True), by_domain(), 3, valid_fraction=0.5, test_fraction=0.3)
    for domain, (index, count) in enumerate(zip(federation.data.valid.index, federation.data.valid.count, strict=True)):
        assert index[:count].tolist() == list(range(domain, 18, 3))
    assert federation.test.index.min() >= 18


def test_local_test_gives_every_site_its_published_test_split():
    federation = federate(dataset(own_test=True), by_domain(), 3, local_test=True, client_test_fraction=0.5)
    assert federation.test is None
    assert federation.data.train.count.tolist() == [26] * 3
    for domain, index in enumerate(federation.data.test.index):
        assert index.tolist() == list(range(78 + domain, 90, 3))


def test_with_a_published_test_split_clients_train_on_the_rest_unless_more_is_held_out():
    usual, asked = (federate(dataset(own_test=True), iid(), 4, **more) for more in ({}, {"client_test_fraction": 0.2}))
    assert usual.test.count == asked.test.count == 12
    assert (usual.data.train.count.sum(), usual.data.test.count.sum()) == (78, 0)
    assert (asked.data.train.count.sum(), asked.data.test.count.sum()) == (62, 16)
    assert usual.fractions == (None, 0.0, 0.0) and asked.fractions == (None, 0.2, 0.0)
    written = federate(dataset(own_test=True), iid(), 4, client_test_fraction=usual.fractions.client_test)
    assert written.fingerprint == usual.fingerprint


def test_clients_hold_out_a_fifth_only_where_there_is_no_common_test_set():
    federation = federate(dataset(), iid(), 4)
    assert federation.fractions == (0.2, 0.0, 0.0)
    assert (federation.test.count, federation.data.train.count.sum(), federation.data.test.count.sum()) == (18, 72, 0)
    alone = federate(dataset(), iid(), 4, test_fraction=0.0)
    assert alone.fractions == (0.0, 0.2, 0.0)
    assert alone.test is None and alone.data.test.count.sum() == 18
    unseen_test = replace(dataset(), is_test=np.arange(90) % 3 == 0)  # a test split of a domain that nobody has
    left_out = {"unseen_domains": "art", "partition": by_domain(), "num_clients": 2}
    assert federate(unseen_test, **left_out).fractions == (0.2, 0.0, 0.0)
    assert federate(unseen_test, **left_out, test_fraction=0.0).fractions == (0.0, 0.2, 0.0)
    assert federate(dataset(own_test=True), by_domain(), 3, local_test=True).fractions == (0.0, None, 0.0)
    assert federate(dataset(own_valid=True), iid(), 4, valid_fraction=0.3).fractions.client_valid is None


def test_newcomers_test_on_all_examples_where_nothing_is_held_out():
    options = {"partition": by_domain(), "num_clients": 3, "unseen_clients": 3, "valid_fraction": 0.1}
    whole, part = (federate(dataset(own_test=True), **options, client_test_fraction=f) for f in ("auto", 0.5))
    assert whole.newcomers.train.count.sum() == 0
    counts = whole.newcomers.valid.count + whole.newcomers.test.count
    assert (counts == sum(getattr(part.newcomers, name).count for name in ("train", "valid", "test"))).all()
    assert (part.newcomers.train.count > 0).all()


def test_equal_train_cuts_training_examples_alone_to_the_smallest_number():
    options = {"partition": quantity_skew(0.5), "num_clients": 4, "valid_fraction": 0.2, "seed": 3}
    full, cut = federate(dataset(), **options), federate(dataset(), **options, equal_train=True)
    assert len(set(full.data.train.count)) > 1
    assert cut.data.train.count.tolist() == [full.data.train.count.min()] * 4
    for name in ("valid", "test"):
        np.testing.assert_array_equal(getattr(cut.data, name).index, getattr(full.data, name).index)
    for kept, full_rows, count in zip(cut.data.train.index, full.data.train.index, full.data.train.count, strict=True):
        assert set(kept) <= set(full_rows[:count])


def test_masks_are_distributed_whole_and_refused_by_label_skew():
    federation = federate(dataset(masks=True), by_domain(), 3)
    assert federation.examples.labels.shape == (90, 4, 4)
    assert federation.class_counts.sum() == federation.data.train.count.sum() * 16
    for partition in (dirichlet(0.5), dirichlet(0.5, equal_sizes=True), shards(1)):
        with pytest.raises(InputError, match="masks or tags, not a class each"):
            federate(dataset(masks=True), partition, 3)


def test_a_drawn_test_set_has_its_fraction_of_every_domain_and_class():
    federation = federate(dataset(), iid(), 4, test_fraction=0.4)
    assert federation.test.count == 36
    labels = federation.examples.labels[federation.test.index]
    assert np.bincount(federation.test.index % 3).tolist() == [12, 12, 12]
    assert np.abs(np.bincount(labels) - 12).max() <= 3


def test_fractions_of_0_leave_no_test_set():
    federation = federate(dataset(), iid(), 4, test_fraction=0.0, client_test_fraction=0.0)
    assert federation.test is None
    assert federation.data.test.count.sum() == 0
    assert federation.class_counts.sum() == 90


def test_a_client_of_one_example_trains_on_it():
    federation = federate(dataset(num=3), iid(), 3, test_fraction=0, client_test_fraction=0.5, valid_fraction=0.4)
    assert federation.data.train.count.tolist() == [1, 1, 1]


def test_newcomers_are_chosen_by_the_seed_and_share_the_examples():
    names = {federate(dataset(), iid(), 4, unseen_clients=2, seed=seed).newcomer_names for seed in range(8)}
    assert len(names) > 1
    federation = federate(dataset(), iid(), 4, unseen_clients=2)
    assert federation.newcomers.examples is federation.data.examples
    assert not set(federation.newcomer_names) & set(federation.client_names)


def test_another_test_fraction_leaves_the_partition_alone():
    first, second = (federate(dataset(), iid(), 4, client_test_fraction=fraction) for fraction in (0.1, 0.3))
    np.testing.assert_array_equal(first.test.index, second.test.index)
    for client in range(4):
        owned = [
            np.sort(np.concatenate([part.index[client][: part.count[client]] for part in f.data[1:]]))
            for f in (first, second)
        ]
        np.testing.assert_array_equal(*owned)


def test_clients_of_one_domain_are_named_after_it():
    assert federate(dataset(), by_domain(), 3).client_names == DOMAINS
    assert federate(dataset(), by_domain(), 4).client_names == ("art_0", "art_1", "photo", "sketch")
    assert federate(dataset(), iid(), 2).client_names == ("client_000", "client_001")
    assert federate(dataset(), by_domain(), 2, unseen_domains="art").client_names == ("photo", "sketch")


def test_standardise_uses_training_examples_of_training_clients_only():
    federation = federate(dataset(), iid(), 4, unseen_clients=2, standardise=True)
    train = federation.data.train
    seen = np.concatenate([row[:count] for row, count in zip(train.index, train.count, strict=True)])
    inputs = np.asarray(federation.prepare(federation.examples.inputs[seen]))
    np.testing.assert_allclose(inputs.mean((0, 1, 2)), 0.0, atol=1e-5)
    np.testing.assert_allclose(inputs.std((0, 1, 2)), 1.0, atol=1e-5)


def test_standardise_takes_constants():
    images = dataset().inputs
    pairs = [(0.5 + channel, 0.25) for channel in range(images.shape[-1])]
    federation = federate(dataset(), iid(), 4, standardise=pairs)
    expected = np.asarray(images, np.float64) / (255 if images.dtype == np.uint8 else 1)
    expected = (expected - [mean for mean, _ in pairs]) / 0.25
    np.testing.assert_allclose(federation.prepare(images), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"standardise": [(0.5, 0.25)] * 9}, r"standardise: 9 pairs .*Give a pair for each"),
        ({"standardise": [(0.5, 0.0)]}, r"standardise: must be .*a finite number above 0"),
        ({"num_clients": -1}, "num_clients: must be a whole number from 0 .*not -1"),
        ({"num_clients": 2.5}, "num_clients: must be a whole number .*not 2.5"),
        ({"unseen_clients": -1}, "unseen_clients: must be a whole number from 0"),
        ({"seed": -1}, "seed: must be a whole number from 0"),
        ({"test_fraction": 1.0}, r"test_fraction: must be a number in \[0, 1\), not 1.0"),
        ({"valid_fraction": -0.1}, r"valid_fraction: must be a number in \[0, 1\), not -0.1"),
        (
            {"valid_fraction": 0.5, "client_test_fraction": 0.5},
            "valid_fraction: 0.5 and client_test_fraction: 0.5 leave nothing",
        ),
        ({"unseen_domains": ["scetch"]}, "no domain 'scetch'. Did you mean 'sketch'"),
        ({"unseen_domains": ["sketch", "sketch"]}, "'sketch' is named 2 times"),
        ({"unseen_domains": DOMAINS}, "no examples left to train on"),
        ({"num_clients": 100}, "100 clients"),
        ({"local_test": True}, "local_test: x has no test split of its own"),
        ({"partition": lambda examples, num, rng: [np.arange(2)] * num}, "every position to exactly one client"),
        ({"partition": lambda examples, num, rng: []}, "made 0 parts"),
    ],
)
def test_impossible_settings_are_named_in_the_error(settings, message):
    with pytest.raises(InputError, match=message):
        federate(dataset(), **({"partition": iid(), "num_clients": 4} | settings))


def test_clients_that_share_examples_hold_none_of_their_own_out():
    partition = resampled_dirichlet(1.0, 6)
    federation = federate(dataset(own_test=True), partition, 200)
    assert federation.num_clients == 200 and set(federation.data.train.count.tolist()) == {6}
    trained = federation.data.train.index.ravel()
    assert not set(trained.tolist()) & set(federation.test.index.ravel().tolist())
    for options in ({"valid_fraction": 0.1}, {"client_test_fraction": 0.1}, {"unseen_clients": 2}):
        with pytest.raises(InputError, match=f"{next(iter(options))}: clients of this partition share examples"):
            federate(dataset(own_test=True), partition, 20, **options)
    assert federate(dataset(own_valid=True), partition, 20).data.valid.count.sum() > 0
    assert federate(dataset(own_test=True), within_domains(partition), 100).data.train.count.tolist() == [6] * 100
