"""Summaries, fingerprints, position tables and random splits of federations."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het.data import federate, iid, splitting
from fedjax_het.data import federation as federation_module
from fedjax_het.data.assembly import assemble


def federation(seed=0, **options):
    data = assemble("x", np.arange(60, dtype=np.float32)[:, None], np.arange(60) % 3, class_names=["a", "b", "c"])
    return federate(data, iid(), 4, seed=seed, valid_fraction=0.1, **options)


def test_class_counts_are_those_of_the_training_rows():
    f = federation()
    for row, count, classes in zip(f.data.train.index, f.data.train.count, f.class_counts, strict=True):
        np.testing.assert_array_equal(classes, np.bincount(row[:count] % 3, minlength=3))


def test_describe_has_a_row_per_client_and_newcomers_last():
    f = federation(unseen_clients=1)
    rows = f.describe()
    assert [row["client"] for row in rows] == [*f.client_names, *f.newcomer_names]
    assert [row["is_newcomer"] for row in rows] == [False] * 4 + [True]
    assert sum(row["train"] + row["valid"] + row["test"] for row in rows) == 60 - f.test.count
    assert all(sum(row["classes"].values()) == row["train"] for row in rows)


def test_the_fingerprint_depends_on_the_seed_and_every_split():
    assert federation().fingerprint == federation().fingerprint
    assert len(federation().fingerprint) == 64
    others = [federation(seed=1), federation(unseen_clients=1), federation(client_test_fraction=0.4)]
    assert len({f.fingerprint for f in [federation(), *others]}) == 4


@pytest.mark.parametrize("field", ["inputs", "labels"])
def test_the_fingerprint_depends_on_the_content_of_every_example(field, monkeypatch):
    monkeypatch.setattr(federation_module, "_CHUNK_BYTES", 100)
    original = federation()
    fingerprints = {original.fingerprint}
    for i in range(60):
        changed = np.array(getattr(original.examples, field))
        changed[i] += 1
        examples = original.examples._replace(**{field: changed})
        fingerprints.add(replace(original, data=original.data._replace(examples=examples)).fingerprint)
    assert len(fingerprints) == 61


def test_the_fingerprint_is_independent_of_the_order_in_memory_and_of_chunks(monkeypatch):
    original = federation()
    inputs = np.asfortranarray(np.arange(60 * 24, dtype=">i4").reshape(60, 6, 4))
    variants = [inputs, np.ascontiguousarray(inputs), inputs.astype("<i4")]
    examples = [original.examples._replace(inputs=array) for array in variants]
    made = [replace(original, data=original.data._replace(examples=part)) for part in examples]
    whole = made[0].fingerprint
    monkeypatch.setattr(federation_module, "_CHUNK_BYTES", 100)
    assert {federation.fingerprint for federation in made[1:]} == {whole}


def test_the_fingerprint_of_known_data_is_the_same_on_every_machine():
    data = federation().data._replace(
        train=splitting.pad_lists([np.array([0, 1, 2]), np.array([3])]),
        valid=splitting.pad_lists([np.array([4]), np.array([], int)]),
        test=splitting.pad_lists([np.array([5]), np.array([6])]),
    )
    known = replace(federation(), data=data, test=splitting.to_rows(np.array([7, 8])), unseen={})
    assert known.fingerprint == "12a8822fe5f5394f4142459156eee635b984b7b8823b81419f59f2c4ae306d99"


def test_a_table_is_padded_with_zeros():
    table = splitting.pad_lists([np.array([4, 5]), np.array([], int), np.array([7])])
    np.testing.assert_array_equal(table.index, [[4, 5], [0, 0], [7, 0]])
    np.testing.assert_array_equal(table.count, [2, 0, 1])
    assert table.index.dtype == table.count.dtype == np.int32


def test_an_empty_table_has_a_capacity_of_one():
    assert splitting.pad_lists([np.array([], int)] * 2).index.shape == (2, 1)


@settings(deadline=None)
@given(st.integers(0, 60), st.floats(0, 0.5), st.floats(0, 0.49), st.integers(0, 9))
def test_a_split_uses_every_position_once_and_keeps_one_for_training(num, valid, test, seed):
    positions = np.arange(num) * 3
    parts = splitting.split_positions(positions, valid, test, np.random.default_rng(seed))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), positions)
    assert len(parts.train) >= min(num, 1)
    assert abs(len(parts.test) - test * num) <= 0.5 or len(parts.train) == 1


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=80), st.floats(0, 1), st.integers(0, 9))
def test_every_stratum_is_split_by_its_fraction_to_within_one(strata, fraction, seed):
    strata = np.array(strata, int)
    is_drawn = splitting.draw_stratified(strata, fraction, np.random.default_rng(seed))
    for group in [np.ones(len(strata), bool), *(strata == stratum for stratum in np.unique(strata))]:
        assert abs(is_drawn[group].sum() - fraction * group.sum()) < 1 + 1e-9
