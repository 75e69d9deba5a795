"""Data that change with the round: the examples of each client in each phase, and refusals."""

import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.data import Concept, concept, drift, federate, iid
from fedjax_het.data.concept import change_examples, stack_concepts
from fedjax_het.errors import InputError
from fedjax_het.types import Examples

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 4, 4, 1), dtype=np.uint8)
LABELS = np.arange(60) % 6
DATASET = fh.data.assemble(
    "images", IMAGES, LABELS, class_names="abcdef", domains=np.arange(60) % 2, domain_names=("x", "y")
)


def drifting(rule, num_clients=3, **options):
    return federate(DATASET, iid(), num_clients, test_fraction=0, drift=rule, **options)


def read(federation, round, part="train"):
    """(Inputs, labels) of each client in a round, in the order of its table."""
    now = federation.in_round(round)
    rows = getattr(now.data, part)
    return [[np.asarray(x) for x in now.examples.read(i[:n])] for i, n in zip(rows.index, rows.count, strict=True)]


def test_a_sudden_drift_turns_training_and_test_images_from_its_start_on():
    whole = drifting(drift.sudden(5, concepts=concept.rotated()))
    for part in ("train", "test"):
        for before, same, after in zip(read(whole, 0, part), read(whole, 4, part), read(whole, 5, part), strict=True):
            np.testing.assert_array_equal(before[0], same[0])
            np.testing.assert_array_equal(after[0], np.rot90(before[0], axes=(1, 2)))
            np.testing.assert_array_equal(after[1], before[1])


def test_clients_drift_one_after_another_and_a_fraction_never():
    whole = drifting(drift.sudden(5, stagger=4, fraction=0.5, concepts=concept.swapped(((0, 1),))), num_clients=4)
    assert whole.phases.starts.tolist() == [0, 5, 7]
    changed = [(rows != whole.phases.rows[0]).sum() for rows in whole.phases.rows]
    assert changed == [0, 1, 2]
    again = drifting(drift.sudden(5, stagger=4, fraction=0.5, concepts=concept.swapped(((0, 1),))), num_clients=4)
    assert whole.fingerprint == again.fingerprint


def test_an_example_keeps_its_new_concept_while_the_share_rises():
    whole = drifting(drift.incremental(2, 4, concepts=concept.inverted()))
    shares, last = [], np.zeros(60, bool)
    for round in range(8):
        is_new = np.concatenate([index[:n] >= 60 for index, n in zip(*whole.in_round(round).data.train, strict=True)])
        assert (is_new >= last[: len(is_new)]).all()
        shares, last = [*shares, is_new.mean()], is_new
    assert shares[:2] == [0, 0] and shares[5:] == [1, 1, 1] and 0 < shares[2] < shares[3] < shares[4] < 1


def test_tasks_divide_the_classes_and_domains_can_take_their_place():
    whole = drifting(drift.tasks(3, 4))
    seen = [set(np.concatenate([labels for _, labels in read(whole, 4 * task)]).tolist()) for task in range(3)]
    assert [len(classes) for classes in seen] == [2, 2, 2] and set.union(*seen) == set(range(6))
    assert (whole.phases.has_class.sum(axis=1) == 2).all()
    by_domain = drifting(drift.sudden(3))
    assert {int(i) % 2 for index, n in zip(*by_domain.in_round(3).data.train, strict=True) for i in index[:n]} == {1}


@pytest.mark.slow
def test_noise_and_flips_depend_on_the_example_alone():
    kinds = [Concept(), Concept(noise=0.1, flips=0.5)]
    concepts = stack_concepts(kinds, IMAGES, LABELS, 6, seed=3)
    examples = Examples(IMAGES, LABELS)._replace(concepts=concepts)
    inputs, labels = map(np.asarray, examples.read(60 + np.arange(60)))
    np.testing.assert_array_equal(inputs[7], np.asarray(examples.read(np.array([67]))[0])[0])
    assert inputs.dtype == np.uint8 and 10 < np.std(inputs.astype(float) - IMAGES) < 30
    assert 0.3 < np.mean(labels != LABELS) < 0.7 and labels.min() >= 0 and labels.max() < 6
    kept = [np.asarray(x) for x in examples.read(np.arange(60))]
    np.testing.assert_array_equal(kept[0], IMAGES)
    np.testing.assert_array_equal(kept[1], LABELS)
    np.testing.assert_array_equal(change_examples(Examples(IMAGES, LABELS), concepts, np.ones(60, int))[0], inputs)


def test_a_file_lists_the_examples_of_clients_and_phases(tmp_path):
    path = tmp_path / "phases.csv"
    lines = [f"{i % 3},{phase},{i}" for i in range(60) for phase in (0, 1) if phase == 0 or i < 30]
    path.write_text("\n".join(["client,phase,example", *lines]))
    whole = federate(
        DATASET, fh.data.PARTITIONS["listed"](str(path)), 3, test_fraction=0, drift=drift.listed(str(path), (0, 9))
    )
    assert (whole.largest_counts("train") + whole.largest_counts("test")).tolist() == [20, 20, 20]
    after = whole.in_round(9).data
    held = np.concatenate([index[:n] for rows in after[1:] for index, n in zip(*rows, strict=True)])
    assert sorted(held.tolist()) == list(range(30))
    assert all((index[:n] % 3 == client).all() for client, (index, n) in enumerate(zip(*after.train, strict=True)))
    with pytest.raises(InputError, match="lists phase 1, and there are 1, numbered from 0"):
        drifting(drift.listed(str(path), (0,)))
    with pytest.raises(InputError, match="lists example 1, which client 1 does not have"):
        drifting(drift.listed(str(path), (0, 9)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: federate(DATASET, iid(), 3, drift=drift.tasks(3)), "^test_fraction: with a drift"),
        (lambda: drifting(drift.tasks(3), unseen_clients=1), "^unseen_clients: with a drift"),
        (lambda: drifting(drift.tasks(4)), "^num_tasks: 6 classes cannot be divided over 4 tasks"),
        (lambda: drifting(drift.sudden((1, 2), concepts=concept.inverted())), "^start: 2 rounds for 3 clients"),
        (lambda: drift.sudden((1, 2), stagger=1), "^stagger: a start for each client"),
        (lambda: drifting(drift.sudden(0, concepts=concept.inverted())), "^drift: "),
        (lambda: drifting(drift.sudden(1, concepts=(Concept(), Concept(degrees=30)))), "cannot be rotated by 30"),
        (lambda: drifting(drift.sudden(1, concepts=concept.swapped(((0, 6),)))), "^pairs: there is no class 6"),
        (lambda: drifting(drift.table(((0, 0, 2), (1, 1, 1)), 2, concepts=concept.rotated())), "no concept 2"),
        (lambda: fh.data.flip_labels(fraction=0.4)(drifting(drift.tasks(3))), "^poison: attackers change examples"),
    ],
)
def test_settings_without_meaning_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
