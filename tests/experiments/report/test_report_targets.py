"""The report's table of what it took to reach a score."""

import json

import pytest

from experiments.report import __main__ as command
from experiments.report import curves, targets
from experiments.report.contents import make_contents
from experiments.report.rows import make_rows
from fedjax_het.errors import InputError
from tests.experiments.report import sample_runs
from tests.experiments.report.sample_runs import read_run


@pytest.fixture
def run_rows(tmp_path):
    """Test accuracies: fedavg .25 and .35 at round 5, .5 and .7 at round 10; fedld .3, .3 and .6, .6, with a clock."""
    one = sample_runs.write_run(tmp_path / "one", finals=(0.5, 0.7))
    two = sample_runs.write_run(tmp_path / "two", "fedld", finals=(0.6, 0.6))
    lines = [json.loads(line) | {"virtual_seconds": 7.0} for line in (two / "metrics.jsonl").read_text().splitlines()]
    (two / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return make_rows([read_run(one), read_run(two)])


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (0.3, {"FedAvg": ("2 of 2", 7.5, 15.0), "FedLD": ("2 of 2", 5, 10.0)}),
        (0.55, {"FedAvg": ("1 of 2", 10, 20.0), "FedLD": ("2 of 2", 10, 20.0)}),
    ],
)
def test_the_first_evaluation_of_each_seed_that_reaches_the_score_counts(run_rows, target, expected):
    table = targets.make_table(run_rows, "accuracy", target)
    assert table.columns == ["seeds", "rounds", "seconds", "traffic", "virtual seconds"]
    for label, (seeds, rounds, seconds, traffic, virtual) in table.rows:
        assert (seeds, rounds.mean, seconds.mean) == expected[label]
        assert traffic.mean == rounds.mean * (2 * 400 + 2 * 500)
        assert (virtual and virtual.mean) == (7.0 if label == "FedLD" else None)


def test_bits_are_counted_where_an_uplink_sends_them(tmp_path):
    run = sample_runs.write_run(tmp_path / "one", finals=(0.5, 0.7))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines = [line | {"traffic/up": 10, "traffic/down": 10, "traffic/bits_up": 100.0 * line["round"]} for line in lines]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = targets.make_table(make_rows([read_run(run)]), "accuracy", 0.3)
    ((_, values),) = table.rows
    assert values[table.columns.index("bits sent")].mean == 750.0


def test_a_score_that_no_seed_reaches_leaves_its_cells_empty(run_rows):
    table = targets.make_table(run_rows, "accuracy", 0.65)
    assert dict(table.rows)["FedLD"] == ["0 of 2", None, None, None]
    assert targets.make_table(run_rows, "dice", 0.5) is None


def test_the_page_has_a_table_for_each_target_and_curves_by_the_virtual_clock(run_rows):
    told = make_contents([run for row in run_rows for run in row.runs], scores_to_reach=[0.3, 0.6])
    assert [table.name for table in told.tables if table.name.startswith("target")] == ["target_30", "target_60"]
    views = curves.make_figure(run_rows, "accuracy", "accuracy").views
    assert [view.name for view in views] == ["by rounds", "by seconds", "by bytes", "by virtual seconds"]
    without = curves.make_figure(run_rows[:1], "accuracy", "accuracy").views
    assert [view.name for view in without] == ["by rounds", "by seconds", "by bytes"]


def test_a_target_that_is_no_score_is_refused():
    with pytest.raises(InputError, match="--target: a score lies between 0 and 1, and 80 does not"):
        command.parse(["runs/a", "--target=80"])
