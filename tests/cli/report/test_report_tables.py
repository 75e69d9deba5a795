"""The report's tables and figures, against numbers worked out by hand."""

import json

import pytest

from fedjax_het.cli.report import __main__ as command
from fedjax_het.cli.report import clients, costs, curves, diagnostics, measures, rows
from fedjax_het.cli.report.contents import make_contents
from fedjax_het.cli.report.rows import make_rows
from fedjax_het.cli.runs.results import MissingRun
from fedjax_het.cli.runs.setting_text import format_bytes
from fedjax_het.cli.runs.tables import make_cells
from fedjax_het.errors import InputError
from tests.cli.report import sample_runs
from tests.cli.report.sample_runs import read_run


@pytest.fixture
def run_rows(tmp_path):
    """fedavg, finished; fedld, still running."""
    first = sample_runs.write_snapshots(
        sample_runs.write_run(tmp_path / "one", finals=(0.5, 0.7), valid={5: 0.9, 10: 0.2})
    )
    two = sample_runs.write_run(tmp_path / "two", "fedld", finals=(0.6, 0.6), is_finished=False, algorithm__lam=0.1)
    return make_rows([read_run(first), read_run(two)])


def test_results_show_the_last_and_the_selected_round(run_rows):
    table = measures.make_table(run_rows, {("FedLD", "test set", "last"): "*"}, "Stars.")
    assert table.columns[:2] == ["test set, last", "test set, selected"]
    (_, (last, selected, *_)), (_, (starred, none, *_)) = table.rows
    assert (last.mean, last.std) == pytest.approx((0.6, 0.1))
    assert (selected.mean, selected.std) == pytest.approx((0.3, 0.05))  # round 5, where validation was at its best
    assert starred.stars == "*" and starred.mean == pytest.approx(0.6) and none is None
    assert table.note.endswith("Stars.")


def test_left_out_domains_are_columns_with_their_mean_and_worst(tmp_path):
    for domain, finals in (("photo", (0.2, 0.4)), ("sketch", (0.4, 0.2))):
        run = sample_runs.write_run(tmp_path / domain, finals=finals, data__unseen=domain)
        text = (run / "metrics.jsonl").read_text().replace("test/accuracy", f"unseen/{domain}/accuracy")
        (run / "metrics.jsonl").write_text(text)
    table = measures.make_table(make_rows([read_run(tmp_path / "photo"), read_run(tmp_path / "sketch")]), {}, "")
    over_domains = ["unseen, mean", "unseen, deviation", "unseen, worst"]
    assert table.columns[:5] == ["unseen photo", "unseen sketch", *over_domains]
    ((label, values),) = table.rows
    assert label == "FedAvg" and [value.mean for value in values[:5]] == pytest.approx([0.3, 0.3, 0.3, 0.1, 0.2])
    assert [value.std for value in values[2:5]] == pytest.approx([0, 0, 0], abs=1e-12)


def test_requested_metrics_have_tables_in_which_the_smallest_error_is_best(tmp_path):
    folders = [sample_runs.write_run(tmp_path / name, finals=finals) for name, finals in (("a", (0.2,)), ("b", (0.4,)))]
    for folder in folders:
        lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        lines = [line | {"test/calibration_error": line["test/accuracy"]} for line in lines]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tables = measures.make_metric_tables(make_rows([read_run(folder) for folder in folders]))
    assert [(table.name, table.columns) for table in tables] == [("results_calibration_error", ["test set"])]
    assert tables[0].title == "Final figures: expected calibration error in per cent"
    assert [(row[0].text, row[0].rank) for row in make_cells(tables[0])] == [("20.0", 0), ("40.0", 1)]


def test_results_on_masks_are_scored_by_dice(tmp_path):
    run = sample_runs.write_run(tmp_path / "run")
    for name in ("metrics.jsonl", "per_client.csv"):
        (run / name).write_text((run / name).read_text().replace("test/accuracy", "test/dice"))
    told = make_contents([read_run(run)])
    assert next(table for table in told.tables if table.name == "results").title == "Final figures: Dice in per cent"
    partition = next(figure for figure in told.figures if figure.name == "partition")
    assert partition.views[0].name == "pixels"


def test_without_validation_examples_there_is_one_column_per_figure(tmp_path):
    table = measures.make_table(make_rows([read_run(sample_runs.write_run(tmp_path / "run"))]), {}, "")
    assert table.columns == ["test set", "clients", "clients, weighted"]


def test_costs_and_fairness_are_those_that_the_run_has_counted(run_rows):
    """Traffic of ten rounds: two clients receive 400 bytes and send 500."""
    table = costs.make_table(run_rows)
    values = dict(zip(table.columns, table.rows[0][1], strict=True))
    assert values["traffic"].mean == 18_000 and values["memory held"].mean == 3000
    assert values["seconds per round"].mean == pytest.approx(2.0) and values["seconds"].mean == 20
    assert table.rows[1][1][table.columns.index("memory held")] is None
    (table,) = clients.make_fairness_tables(run_rows)
    assert table.rows[0][1][table.columns.index("Gini")].mean == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("number", "text"), [(999, "999 B"), (19_244, "19.2 kB"), (999_900, "1 MB"), (2.5e9, "2.5 GB")]
)
def test_sizes_have_three_digits(number, text):
    assert format_bytes(number) == text


@pytest.mark.parametrize(("number", "text"), [(0.0503, "50.3 ms"), (12.34, "12.3 s"), (3725, "1 h 2 min")])
def test_times_have_a_readable_unit(number, text):
    assert costs.format_seconds(number) == text


def test_only_settings_that_differ_are_tabulated(run_rows):
    table, common = rows.tabulate_settings(run_rows)
    assert table.rows == [("algorithm.name", ["fedavg", "fedld"]), ("algorithm.lam", ["–", "0.1"])]
    assert common["data.partition.alpha"] == "0.1" and "algorithm.name" not in common


def test_the_table_of_runs_has_states_and_reasons_for_missing_runs(run_rows):
    table = rows.tabulate_runs(run_rows, [MissingRun("fedmgc", "exit status 2: no data")])
    states = [row[table.columns.index("state")] for _, row in table.rows]
    assert states[0] == "finished" and states[1].startswith("running: round 10 of 10")
    assert table.rows[2] == ("fedmgc", ["no run: exit status 2: no data", *[None] * 7])
    assert [row[-1] for _, row in table.rows[:2]] == ["one", "two"]


def test_curves_are_means_with_a_band_over_seeds(run_rows):
    by_rounds, by_seconds, by_bytes = curves.make_figure(run_rows).views
    panel = next(panel for panel in by_rounds.panels if panel.title == "test set: accuracy")
    assert panel.marks[0].x == [5, 10] and panel.marks[0].y == pytest.approx([0.3, 0.6])
    assert (panel.marks[0].low, panel.marks[0].high) == ([0.25, 0.5], [0.35, 0.7])
    assert by_seconds.panels[0].marks[1].x == [10, 20]
    assert by_bytes.panels[0].marks[0].x == pytest.approx([0.009, 0.018])


def test_curves_over_bits_are_drawn_where_a_run_has_an_uplink(tmp_path):
    """Runs without an uplink send whole bytes."""
    runs = [sample_runs.write_run(tmp_path / name) for name in ("plain", "compressed")]
    for folder, figures in zip(runs, ({}, {"traffic/bits_up": 5e6}), strict=True):
        lines = [
            json.loads(line) | {"traffic/down": 70, "traffic/up": 1e6} | figures
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert len(curves.make_figure(make_rows([read_run(runs[0])])).views) == 3
    found = make_rows([read_run(folder) for folder in runs])
    (*_, by_bits) = curves.make_figure(found).views
    assert by_bits.name == "by bits"
    assert sorted(x for mark in by_bits.panels[0].marks for x in mark.x) == [5, 5, 8, 8]


def test_the_scores_figure_has_one_point_per_client(run_rows):
    by_client, ordered = clients.make_scores_figure(run_rows).views
    (points,) = by_client.panels[0].marks
    assert points.x == ["a", "b", "c"] and points.y == pytest.approx([0.6] * 3)
    assert (points.low, points.high) == ([0.5] * 3, [0.7] * 3)
    assert ordered.panels[0].marks[0].x == pytest.approx([1 / 6, 1 / 2, 5 / 6])


def test_rows_with_the_same_partition_share_a_heat_map(run_rows):
    examples, shares = clients.make_partition_figure(run_rows).views
    (panel,) = examples.panels
    assert panel.title == "all runs" and panel.rows == ("FedAvg", "FedLD")
    assert panel.marks[0].z == [[0, 1, 2], [9, 8, 7]]
    assert shares.panels[0].marks[0].z[1] == pytest.approx([1, 8 / 9, 7 / 9])


def test_diagnostics_are_drawn_by_shape_without_absent_clients(run_rows):
    drawn = {figure.name: figure for figure in diagnostics.make_figures(run_rows)}
    assert set(drawn) == {
        "conflict", "conflict_values", "conflict_cosines", "classes_losses", "spectrum", "spectrum_values",
        "landscape", "landscape_clients",
    }  # fmt: skip
    curve = drawn["conflict"].views[0].panels[0].marks[0]
    assert (curve.x, curve.y, curve.low, curve.high) == ([1, 6], [0.5, 1.0], [0, 0.5], [1, 1.5])
    agreement = drawn["conflict_values"].views[1].panels[0].marks[0]
    assert (agreement.x, agreement.y) == (["a", "c"], [1, 2])
    cosines = drawn["conflict_cosines"].views[1].panels[0].marks[0]
    assert (cosines.x, cosines.y, cosines.z) == (["a", "c"], ["a", "c"], [[1, -0.5], [-0.5, 1]])
    losses = drawn["classes_losses"].views[0].panels[0].marks[0]
    assert losses.x == ["cat", "dog"] and len(losses.z) == 2
    assert [panel.title for panel in drawn["spectrum"].views[0].panels] == [f"axes for {n} %" for n in (80, 90, 99)]
    assert [view.name for view in drawn["landscape_clients"].views] == ["a", "c"]


def test_results_on_different_data_are_in_separate_tables(tmp_path):
    runs = [read_run(sample_runs.write_run(tmp_path / name, data__name=name)) for name in ("digits", "cifar")]
    told = make_contents(runs)
    assert [table.name for table in told.tables if table.name.startswith("results")] == [
        "results_digits", "results_cifar",
    ]  # fmt: skip
    assert all(len(table.rows) == 1 for table in told.tables if table.name.startswith("results"))


def test_the_lead_names_the_best_row_warns_of_few_seeds_and_counts_unfinished_runs(run_rows):
    lead = make_contents([row.first for row in run_rows]).lead
    assert lead[0] == "test set, last: FedAvg is best with 60.0 ± 10.0 % (2 seeds)."
    assert lead[-1] == "1 of 2 runs are not finished."


# ---- scores to reach -------------------------------------------------------------------------------------------------
@pytest.fixture
def timed_rows(tmp_path):
    """Test accuracies: fedavg .25 and .35 at round 5, .5 and .7 at round 10; fedld .3, .3 and .6, .6, with a clock."""
    first = sample_runs.write_run(tmp_path / "one", finals=(0.5, 0.7))
    two = sample_runs.write_run(tmp_path / "two", "fedld", finals=(0.6, 0.6))
    lines = [json.loads(line) | {"virtual_seconds": 7.0} for line in (two / "metrics.jsonl").read_text().splitlines()]
    (two / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return make_rows([read_run(first), read_run(two)])


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (0.3, {"FedAvg": ("2 of 2", 7.5, 15.0), "FedLD": ("2 of 2", 5, 10.0)}),
        (0.55, {"FedAvg": ("1 of 2", 10, 20.0), "FedLD": ("2 of 2", 10, 20.0)}),
    ],
)
def test_the_first_evaluation_of_each_seed_that_reaches_the_score_counts(timed_rows, target, expected):
    table = costs.make_target_table(timed_rows, target)
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
    table = costs.make_target_table(make_rows([read_run(run)]), 0.3)
    ((_, values),) = table.rows
    assert values[table.columns.index("bits sent")].mean == 750.0


def test_a_score_that_no_seed_reaches_leaves_its_cells_empty(timed_rows):
    table = costs.make_target_table(timed_rows, 0.65)
    assert dict(table.rows)["FedLD"] == ["0 of 2", None, None, None]


def test_without_evaluations_there_is_no_table_of_a_target(tmp_path):
    run = sample_runs.write_run(tmp_path / "run", is_finished=False)
    (run / "metrics.jsonl").write_text("")
    assert costs.make_target_table(make_rows([read_run(run)]), 0.5) is None


def test_the_page_has_a_table_for_each_target_and_curves_by_the_virtual_clock(timed_rows):
    told = make_contents([run for row in timed_rows for run in row.runs], scores_to_reach=[0.3, 0.6])
    assert [table.name for table in told.tables if table.name.startswith("target")] == ["target_30", "target_60"]
    views = curves.make_figure(timed_rows).views
    assert [view.name for view in views] == ["by rounds", "by seconds", "by bytes", "by virtual seconds"]
    without = curves.make_figure(timed_rows[:1]).views
    assert [view.name for view in without] == ["by rounds", "by seconds", "by bytes"]


def test_a_target_that_is_no_score_is_refused():
    with pytest.raises(InputError, match="--target: expected a score between 0 and 1, got 80"):
        command.parse(["runs/a", "--target=80"])
