"""The papers' experiments: settings of all their runs, and measures and figures of finished ones."""

import csv
import json
import math

import jax
import jax.numpy as jnp
import pytest

from experiments import figures, measures
from experiments.papers import __main__ as papers
from experiments.papers import baselines, fedld, fl_simulator, harmofl
from experiments.run import find_folder
from experiments.spec import Entry
from fedjax_het import sharing, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.cli.configuration import build, calls
from fedjax_het.cli.configuration.settings import TABLES
from fedjax_het.cli.runs import plots
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.errors import InputError
from tests.cli.report import sample_runs
from tests.cli.runs.test_results import FIGURE, SUMMARY
from tests.experiments.papers.test_facts import PAPERS, flat

IMAGES = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
OTHERS = {"baselines": baselines.EXPERIMENTS, "fl_simulator": fl_simulator.EXPERIMENTS}
ALL = [
    pytest.param(experiment, scale, id=f"{paper}-{what}-{scale}")
    for paper, experiments in {**PAPERS, **OTHERS}.items()
    for what, experiment in experiments.items()
    for scale in experiment.scales
]


def write_partition(folder, classes):
    """Write a partition of clients with these numbers of training examples by class."""
    counts = {"is_newcomer": False, "train": 1, "valid": 0, "test": 1}
    clients = [{"client": f"client {i}", **counts, "classes": c} for i, c in enumerate(classes)]
    (folder / "partition.json").write_text(json.dumps(sample_runs.make_partition(clients)))


@pytest.mark.extended
@pytest.mark.parametrize(("experiment", "scale"), ALL)
def test_the_settings_of_every_run_are_valid(experiment, scale):
    choice = next(iter(experiment.choices))
    cells = experiment.make_runs(scale, {}, dict.fromkeys(experiment.scales[scale].data, "somewhere"), choice)
    read = {place: cell.settings() for place, cell in cells.items()}
    for chosen in read.values():
        build.build_algorithm(chosen)
    assert len(cells) == len(experiment.rows) * len(experiment.scales[scale].columns)
    for name in experiment.measures:
        for row in experiment.printed.get(name, {}):
            assert row in experiment.rows
    for (row, column), chosen in read.items():
        for key, text in experiment.tuned.get((row, column), {}).items():
            assert str(dict(flat(chosen))[key]) == text
        assert "{" not in str(chosen["data"].get("path"))


@pytest.mark.slow
@pytest.mark.parametrize("paper", PAPERS)
def test_networks_have_the_layers_that_their_algorithm_keeps_personal(paper):
    seen = set()
    for experiment in PAPERS[paper].values():
        for scale, chosen in experiment.scales.items():
            for cell in experiment.make_runs(scale, {}, dict.fromkeys(chosen.data, "somewhere")).values():
                settings = cell.settings()
                algorithm, table = build.build_algorithm(settings), {**settings["model"], "pretrained": None}
                table = {key: value for key, value in table.items() if key in settings["model"]}
                combination = settings["algorithm"]["name"], str(table)
                if not hasattr(algorithm.sharing, "classes") or combination in seen:
                    continue
                seen.add(combination)
                model = calls.build_from_table(table, TABLES["model"].registry, "config.model", num_classes=3)
                model = algorithm.adapt(model)
                paths = tree.paths(jax.eval_shape(model.init, make_key(0), IMAGES))
                assert sharing.personal_paths(algorithm.sharing, paths, model.layers(IMAGES)), (cell.name, scale)
    assert bool(seen) == (paper != "fedmgc")


@pytest.mark.extended
@pytest.mark.parametrize("paper", PAPERS)
def test_tables_share_the_runs_of_equal_settings_and_no_others(paper, tmp_path):
    settings_of, shared = {}, 0
    for experiment in PAPERS[paper].values():
        for scale, chosen in experiment.scales.items():
            for cell in experiment.make_runs(scale, {}, dict.fromkeys(chosen.data, "here")).values():
                directory = find_folder(cell, scale, tmp_path) / cell.name
                settings = cell.settings()
                shared += directory in settings_of
                assert settings_of.setdefault(directory, settings) == settings
    assert shared > 0


@pytest.mark.extended
@pytest.mark.parametrize("paper", ("fedrd", "harmofl"))
def test_every_experiment_has_a_smoke_scale_without_files(paper):
    for experiment in PAPERS[paper].values():
        scale = experiment.scales["smoke"]
        assert not scale.data and len(scale.columns) == 1
        for cell in experiment.make_runs("smoke", {}, {}).values():
            assert cell.settings()["data"]["name"] == "digits" and cell.settings()["rounds"] == 3


@pytest.mark.parametrize(("paper", "what"), [(paper, what) for paper in PAPERS for what in PAPERS[paper]])
def test_printed_rows_have_one_value_per_column(paper, what):
    experiment = PAPERS[paper][what]
    num = len(experiment.scales["paper"].columns) + bool(experiment.average)
    for rows in experiment.printed.values():
        assert {len(values) for values in rows.values()} == {num}
    for scale in experiment.scales.values():
        assert bool(scale.reduction) == (scale is not experiment.scales["paper"])


def test_settings_of_the_user_take_precedence():
    cells = fedld.EXPERIMENTS["table2"].make_runs("smoke", {"rounds": "7", "data.partition.alpha": "5"}, {})
    assert {cell.settings()["rounds"] for cell in cells.values()} == {7}
    assert {cell.settings()["data"]["partition"]["alpha"] for cell in cells.values()} == {5.0}


@pytest.mark.extended
@pytest.mark.parametrize(
    "draw",
    [
        figures.plot_columns("alpha"),
        figures.plot_rounds("test/accuracy"),
        figures.plot_rounds("unseen"),
        figures.plot_rounds("own"),
        figures.plot_diagnostics(
            {"": measures.mean_quantity("a", "b"), "twice": measures.mean_quantity("a", "b")}, "b"
        ),
        figures.plot_class_shares,
    ],
)
def test_figures_are_drawn_and_written(tmp_path, draw):
    runs = {}
    for row in ("FedAvg", "FedLD"):
        (tmp_path / row).mkdir()
        lines = [
            {
                "round": r,
                "seed": seed,
                "seconds": 1.0,
                "test/accuracy": 0.1 * r,
                "unseen/x/accuracy": 0.2,
                "clients/accuracy_mean": 0.3,
                "a": {"b": [1.0, r]},
            }
            for r, seed in ((1, 0), (1, 1), (2, 0), (2, 1))
        ]
        diagnosed = [{key: line[key] for key in ("round", "seed", "a")} | {"cohort": {}} for line in lines]
        for name, written in (("metrics.jsonl", lines), ("diagnostics.jsonl", diagnosed)):
            drawn = [{key: x for key, x in line.items() if name != "metrics.jsonl" or key != "a"} for line in written]
            (tmp_path / row / name).write_text("".join(json.dumps(line) + "\n" for line in drawn))
        write_partition(tmp_path / row, [{"x": n, "y": 3} for n in range(4)])
        runs |= {(row, column): RunResults(tmp_path / row) for column in ("0.1", "10")}
    entries = [Entry("loss", row, column, None, [1.0, 2.0]) for row, column in runs]
    drawing = draw([*entries, Entry("loss", "FedMGC", "0.1", None, [])], runs)
    plots.save(drawing, tmp_path / "figure.png")
    plots.plt.close(drawing)
    assert (tmp_path / "figure.png").stat().st_size > 5_000


def test_measures_read_the_numbers_of_a_run(tmp_path):
    final_figures = {
        "test/accuracy": [0.5, 0.6],
        "personal_test/accuracy_mean": [0.7, 0.8],
        "clients/accuracy_mean": [0.55, 0.65],
        "unseen/a/accuracy": [0.2, 0.4],
        "unseen/b/accuracy": [0.4, 0.6],
    }
    final = {name: FIGURE | {"seeds": seeds} for name, seeds in final_figures.items()}
    summary = SUMMARY | {"final": final}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    rows = [
        "seed,client,is_newcomer,accuracy,personal_accuracy",
        "0,x,False,0.1,",
        "0,y,False,0.2,0.9",
        "0,z,True,0.3,",
    ]
    (tmp_path / "per_client.csv").write_text("\n".join(rows) + "\n")
    lines = [{"round": r, "seed": 0, "cohort": {}, "drift": {"gamma": r, "by_client": [r, r + 2]}} for r in (0, 5)]
    (tmp_path / "diagnostics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = RunResults(tmp_path)
    read = {
        "final": measures.read_final("test/accuracy")(run, "S1"),
        "on test": measures.read_test_score()(run, "S1"),
        "on own": measures.read_mean_client_score()(run, "S1"),
        "unseen": measures.read_unseen_score()(run, "P"),
        "by letter": measures.read_client_score()(run, "A"),
        "by name": measures.read_client_score()(run, "y"),
        "first": measures.read_first(measures.mean_quantity("drift", "gamma"))(run, "-"),
        "last": measures.read_last(measures.mean_quantity("drift", "by_client"))(run, "-"),
    }
    expected = {
        "final": [50, 60],
        "on test": [70, 80],
        "on own": [55, 65],
        "unseen": [30, 50],
        "by letter": [10],
        "by name": [90],
        "first": [0],
        "last": [6],
    }
    assert read.keys() == expected.keys()
    for name, values in read.items():
        assert values == pytest.approx(expected[name]), name


def test_mean_class_loss_selects_classes_by_their_size_per_client():
    line = {
        "classes": {"losses": [[1.0, 2.0, 4.0, None], [3.0, None, None, None]], "counts": [[5, 9, 1, 0], [2, 0, 0, 0]]},
        "cohort": {"is_present": [True, False]},
    }
    values = [measures.mean_class_loss(chosen)(line) for chosen in (slice(0, 1), slice(0, 2), slice(-2, None))]
    assert values == [2.0, 1.5, 2.5]
    line["cohort"]["is_present"] = [True, True]
    assert measures.mean_class_loss(slice(-1, None))(line) == 3.5


def test_class_shares_sum_to_one_per_client(tmp_path):
    write_partition(tmp_path, [{"x": 3, "y": 1}, {"x": 0, "y": 2}, {"x": 0, "y": 0}])
    assert measures.class_shares(RunResults(tmp_path)).tolist() == [[0.75, 0.25], [0, 1], [0, 0]]
    assert measures.read_largest_share(RunResults(tmp_path), "1.0") == pytest.approx([100 * 1.75 / 3])


@pytest.mark.slow
def test_a_figure_is_trained_and_drawn_at_the_smoke_scale(tmp_path, capsys):
    arguments = ["fedld", "--what=fig2", "--scale=smoke", f"--workdir={tmp_path}"]
    assert papers.main(arguments) == 0
    rows = list(csv.DictReader((tmp_path / "fig2-smoke.csv").open(newline="")))
    values = {(row["measure"], row["row"]): float(row["mean"]) for row in rows}
    assert values["absolute shift", "neither"] == values["absolute shift", "principal directions"] > 0
    assert values["absolute shift", "margin"] != values["absolute shift", "neither"]
    assert (tmp_path / "fig2-smoke.png").stat().st_size > 10_000
    assert papers.main(arguments) == 0
    assert capsys.readouterr().out.count("was done") == 3


@pytest.mark.parametrize("what", ["table1-nuclei", "table1-prostate", "table2"])
def test_columns_of_the_smoke_scale_are_existing_clients(what):
    experiment = harmofl.EXPERIMENTS[what]
    chosen = next(iter(experiment.make_runs("smoke", {}, {}).values())).settings()
    assert set(experiment.scales["smoke"].columns) <= set(build.build_parts(chosen).federation.client_names)


def test_the_error_for_a_column_without_a_client_names_the_clients(tmp_path):
    (tmp_path / "per_client.csv").write_text("seed,client,is_newcomer,accuracy\n0,x,False,0.1\n0,y,False,0.2\n")
    for column in ("C", "client_0"):
        with pytest.raises(InputError, match=f"no client for the column '{column}'; its clients are x, y"):
            measures.read_client_score()(RunResults(tmp_path), column)


def test_a_run_that_holds_out_nothing_for_a_measure_is_named_with_the_remedy(tmp_path):
    rows = "seed,client,is_newcomer,accuracy,personal_accuracy\n0,x,False,,\n"
    (tmp_path / "per_client.csv").write_text(rows)
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY))
    remedy = r"data\.client_test_fraction"
    with pytest.raises(InputError, match=f"client 'x' has no test examples of its own.*{remedy}"):
        measures.read_client_score()(RunResults(tmp_path), "x")
    with pytest.raises(InputError, match=f"no personal/accuracy_mean and no clients/accuracy_mean.*{remedy}"):
        measures.read_mean_client_score()(RunResults(tmp_path), "x")


def distinct_experiments():
    """Every table and figure, except those that equal another one at the smallest scale."""
    known = []
    for paper, experiments in PAPERS.items():
        for what, experiment in experiments.items():
            parts = experiment.rows, experiment.measures.keys(), experiment.scales["smoke"], experiment.draw
            if parts not in known:
                known.append(parts)
                yield pytest.param(paper, what, id=f"{paper}-{what}")


SMALLEST = list(distinct_experiments())
SEEN_BY_DIAGNOSTICS = ("fig1", "fig4-nuclei")


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "what"), SMALLEST)
def test_every_experiment_runs_at_the_smoke_scale(tmp_path, paper, what):
    experiment, arguments = PAPERS[paper][what], [f"--what={what}", "--scale=smoke"]
    assert papers.main([paper, *arguments, f"--workdir={tmp_path}"]) == 0
    rows = list(csv.DictReader((tmp_path / f"{what}-smoke.csv").open(newline="")))
    assert {row["row"] for row in rows} == experiment.rows.keys()
    assert {row["measure"] for row in rows} == experiment.measures.keys()
    assert all(math.isfinite(float(row["mean"])) for row in rows)
    if experiment.draw:
        min_bytes = 20_000 if what in SEEN_BY_DIAGNOSTICS else 10_000
        assert (tmp_path / f"{what}-smoke.png").stat().st_size > min_bytes
