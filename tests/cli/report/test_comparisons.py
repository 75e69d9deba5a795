"""Tests of significance against numbers worked out by hand."""

import math

import pytest

from fedjax_het.cli.report import comparisons, rows
from tests.cli.report import sample_runs
from tests.cli.report.sample_runs import read_run


def test_the_paired_t_test_matches_students_distribution():
    """Differences 1 ... 5: t = 3 / (sqrt(2.5) / sqrt(5)); Student's distribution of 4 degrees in closed form."""
    found = comparisons.paired_t_test([2, 4, 6, 8, 10], [1, 2, 3, 4, 5])
    t = 3 / math.sqrt(0.5)
    scaled = 1 + t**2 / 4
    p = 2 * (0.5 - 3 / 8 * t / math.sqrt(scaled) * (1 - t**2 / (12 * scaled)))
    assert found.num_pairs == 5 and found.difference == 3
    assert found.p == pytest.approx(p) == pytest.approx(0.01324, abs=1e-5)
    assert found.interval == pytest.approx((3 - 2.776445 * math.sqrt(0.5), 3 + 2.776445 * math.sqrt(0.5)), abs=1e-5)


def test_with_too_few_seeds_there_is_an_interval_but_no_p_value():
    found = comparisons.paired_t_test([2, 4, 6, 8], [1, 2, 3, 4])
    assert found.p is None and found.interval is not None and found.num_pairs == 4
    assert comparisons.paired_t_test([2], [1]) == (1, None, None, 1)


def test_constant_differences_have_no_p_value():
    assert comparisons.paired_t_test([2] * 6, [1] * 6) == (1, None, None, 6)


def test_the_signed_rank_test_matches_the_exact_distribution():
    """Of the 2^6 ways to sign six ranks one is as extreme on each side; pairs without a difference are ignored."""
    ours, theirs = [0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 0.5], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.5]
    assert comparisons.signed_rank_test(ours, theirs).p == pytest.approx(2 / 64)
    assert comparisons.signed_rank_test(ours, theirs).num_pairs == 7
    assert comparisons.signed_rank_test(ours[1:], theirs[1:]).p is None


def compare(tmp_path, *some):
    found = rows.make_rows([read_run(sample_runs.write_run(tmp_path / str(i), *run)) for i, run in enumerate(some)])
    return comparisons.compare_with_baseline(found)


FEDAVG = (0.50, 0.52, 0.54, 0.56, 0.58)


def test_rows_are_compared_with_fedavg_seed_by_seed(tmp_path):
    better = tuple(x + 0.1 + 0.001 * i for i, x in enumerate(FEDAVG))
    found = compare(tmp_path, ("fedavg", FEDAVG), ("fedld", better), ("fedmgc", FEDAVG))
    ours = next(row for row in found if (row.label, row.column, row.pairs) == ("FedLD", "test set", "seeds"))
    assert ours.against == "FedAvg" and ours.test.num_pairs == 5
    assert ours.test.difference == pytest.approx(0.102)
    alone = comparisons.paired_t_test(better, FEDAVG).p
    assert ours.test.p == pytest.approx(alone)  # fedmgc differs nowhere, so that it has no p and does not count
    stars = comparisons.significance_stars(found)
    assert stars[("FedLD", "test set", "last")] == "***" and stars[("FedMGC", "test set", "last")] == ""
    assert "paired t-test over 5 seeds" in comparisons.describe_stars(found)
    assert not any(row.label == "FedAvg" for row in found)


def test_with_too_few_seeds_there_are_no_stars_and_a_note(tmp_path):
    found = compare(tmp_path, ("fedavg", (0.5, 0.6)), ("fedld", (0.8, 0.99)))
    assert not any(comparisons.significance_stars(found).values())
    assert (
        "No stars: too few pairs for a test against FedAvg (2 seeds; at least 5 are needed)."
        in comparisons.describe_stars(found)
    )
    table = comparisons.make_table(found)
    assert table.rows[0][1][-1] == "too few pairs" and table.rows[0][1][4].mean == 2


def test_clients_are_paired_only_if_both_runs_have_the_same_data(tmp_path):
    names = [f"client {i}" for i in range(8)]
    runs = [
        sample_runs.write_run(
            tmp_path / name, name, clients={client: (level, level + 0.02 * i) for i, client in enumerate(names)}
        )
        for name, level in (("fedavg", 0.5), ("fedld", 0.6))
    ]
    found = [
        comparison
        for comparison in comparisons.compare_with_baseline(rows.make_rows(list(map(read_run, runs))))
        if comparison.pairs == "clients"
    ]
    assert [(comparison.column, comparison.test.num_pairs) for comparison in found] == [("clients", 8)]
    assert found[0].test.p == pytest.approx(2 / 2**8) and found[0].test.difference == pytest.approx(0.1)
    sample_runs.write_json(runs[1] / "partition.json", sample_runs.make_partition([]) | {"fingerprint": "f2"})
    assert not [
        comparison
        for comparison in comparisons.compare_with_baseline(rows.make_rows(list(map(read_run, runs))))
        if comparison.pairs == "clients"
    ]
