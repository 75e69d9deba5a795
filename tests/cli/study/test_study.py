"""Studies: draws, selection on validation examples, statistics, and a whole study with a planted method."""

import csv
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats

from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.cli.study import __main__ as study
from fedjax_het.cli.study import comparison, search, selection, trials
from fedjax_het.cli.study.comparison import Interval, Row
from fedjax_het.cli.sweep.training import GridResult
from fedjax_het.errors import InputError
from tests.cli.report import sample_runs
from tests.cli.runs.test_results import SUMMARY

SMALL = [
    "--config=quickstart",
    "--config.rounds=4",
    "--config.evaluate_every=4",
    "--config.layout=vmapped",
    "--config.data.num_clients=4",
    "--config.cohort_size=2",
    "--config.model.hidden=8,",
]
RATE = "algorithm.learning_rate"
VALIDATION = "--config.data.valid_fraction=0.2"


# ---- trials ----------------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:lam")
def test_every_algorithm_declares_a_space_whose_ends_it_accepts():
    for name, factory in ALGORITHMS.items():
        space = trials.search_space(name)
        assert "learning_rate" in space
        for share in (0.0, 1.0):
            factory(**{argument: option.search.draw(share) for argument, option in space.items()})


def draw(method, count, seed=7, given=(), algorithm=()):
    return trials.draw_trials(method, count, seed, dict(given), dict(algorithm))


def test_trials_depend_on_the_argument_and_not_on_the_method():
    (_, *others), drawn = (draw(name, 4) for name in ("fedavg", "fedprox"))
    rates = [dict(trial.values)["algorithm.learning_rate"] for trial in others]
    assert [dict(trial.values)["algorithm.learning_rate"] for trial in drawn[1:]] == rates
    assert len(set(rates)) == 3 and all(1e-3 <= float(rate) <= 1 for rate in rates)
    assert all({"algorithm.mu", "algorithm.learning_rate"} == dict(trial.values).keys() for trial in drawn[1:])
    assert draw("fedprox", 2, seed=8)[1] != drawn[1]
    fixed = draw("fedprox", 4, given={"algorithm.mu": "0"})
    assert [trial.values for trial in fixed] == [trial.values for trial in draw("fedavg", 4)]
    assert len(draw("fedavg", 4, given={"algorithm.learning_rate": "1"})) == 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [2, 4, 16])
def test_every_interval_of_every_range_has_one_trial(seed, count):
    drawn = [dict(trial.values) for trial in draw("fedprox", count, seed)[1:]]
    for key, low in (("algorithm.learning_rate", 1e-3), ("algorithm.mu", 1e-4)):
        shares = np.log([float(values[key]) / low for values in drawn]) / np.log(1 / low)
        assert sorted(np.floor(shares * (count - 1)).tolist()) == list(range(count - 1))


def test_the_defaults_are_shown_with_their_values():
    first = draw("fedprox", 2, algorithm={"mu": 0.01, "learning_rate": 1 / 3})[0]
    assert first.values == () and first.text == "the defaults (mu=0.01, learning_rate=0.333)"
    assert trials.Trial("fedavg", ()).text == "the defaults"


def test_a_selected_value_at_an_end_is_described():
    tried = [trials.Trial("fedavg", ((RATE, text),)) for text in ("0.002", "0.05", "0.7")]
    tried = [trials.Trial("fedavg", (), ((RATE, "0.1"),)), *tried]
    (found,) = trials.find_values_at_ends(tried[1], tried)
    assert found.startswith("the selected learning_rate=0.002 is the smallest of 4 values tried") and "below" in found
    (found,) = trials.find_values_at_ends(tried[3], tried)
    assert "largest" in found and "LogUniform(0.001, 1)" in found and "above" in found
    assert not list(trials.find_values_at_ends(tried[0], tried)) + list(trials.find_values_at_ends(tried[2], tried))


def test_rungs_of_successive_halving():
    assert trials.plan_rungs(100, 16, 0) == [(100, 16)]
    assert trials.plan_rungs(100, 16, 2) == [(12, 16), (25, 8), (50, 4), (100, 2)]
    assert trials.plan_rungs(90, 9, 3) == [(30, 9), (90, 3)]
    assert trials.count_rounds(trials.plan_rungs(90, 9, 3)) == 540
    with pytest.raises(InputError, match="too few"):
        trials.plan_rungs(3, 16, 2)


# ---- selection -------------------------------------------------------------------------------------------------------
def finished(**figures: float) -> SimpleNamespace:
    final = {name.replace("__", "/"): {"mean": value, "seeds": [value]} for name, value in figures.items()}
    return SimpleNamespace(final=final, directory="a run")


def test_rules_read_validation_figures_of_what_is_compared():
    figures = {"accuracy_mean": 0.5, "accuracy_min": 0.1, "accuracy_weighted": 0.6}
    own = {f"personal_valid__{name}": value + 0.2 for name, value in figures.items()}
    run = finished(**{f"valid__{name}": value for name, value in figures.items()}, **own, test__accuracy=0.9)
    assert [selection.rate_trial(run, name, "server") for name in selection.SELECTORS] == [0.5, 0.1, 0.6]
    assert selection.rate_trial(run, "worst_client", "clients") == pytest.approx(0.3)
    assert selection.rate_trial(run, selection.ORACLE, "server") == 0.9
    with pytest.raises(InputError, match="no client has validation examples"):
        selection.rate_trial(finished(test__accuracy=0.9), "mean_client", "server")


def test_a_rule_that_looks_at_test_examples_fails(monkeypatch):
    run = finished(valid__accuracy_mean=0.5, test__accuracy=0.9, clients__accuracy_mean=0.8)
    for name in ("test/accuracy", "accuracy", "clients/accuracy_mean"):
        cheat = {"cheat": lambda figures, score, name=name: figures[name]}
        monkeypatch.setattr(selection, "SELECTORS", cheat)
        with pytest.raises(KeyError):
            selection.rate_trial(run, "cheat", "server")


def test_accuracy_of_the_most_frequent_class_is_constant():
    """Of 300 validation examples, 60 % are of class a; of client 1's alone all are."""
    clients = [
        {"valid": 100, "classes": {"a": 50, "b": 0}},
        {"valid": 200, "classes": {"a": 40, "b": 60}},
        {"valid": 0, "classes": {"a": 0, "b": 900}},
    ]

    def is_constant(accuracy, group, scope):
        run = finished(**{f"{group}__accuracy_weighted": accuracy})
        run.partition_clients = clients
        return selection.is_constant(run, scope)

    assert is_constant(0.6, "valid", "server") and is_constant(0.1, "valid", "server")
    assert is_constant(math.nan, "valid", "server") and not is_constant(0.7, "valid", "server")
    assert is_constant(0.73, "personal_valid", "clients") and not is_constant(0.85, "personal_valid", "clients")
    run = finished(valid__dice_mean=0.1, valid__accuracy_weighted=0.1)
    run.partition_clients = clients
    assert not selection.is_constant(run, "server")


# ---- statistics ------------------------------------------------------------------------------------------------------
def test_intervals_and_tests_are_those_of_scipy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.5, 0.1, 6), rng.normal(0.55, 0.1, 6)
    expected = scipy.stats.ttest_1samp(a, 0).confidence_interval(0.95)
    found = Interval.of(a.tolist())
    np.testing.assert_allclose([found.mean - found.half_width, found.mean + found.half_width], expected, rtol=1e-9)
    assert comparison.paired_p_value(b, a) == pytest.approx(scipy.stats.ttest_rel(b, a).pvalue)
    assert comparison.paired_p_value(a, a) == 1.0
    assert math.isnan(comparison.paired_p_value(a[:1], b[:1])) and str(Interval.of([0.5])) == "50.0"


def test_holms_correction():
    found = comparison.correct_by_holm([0.01, 0.04, math.nan, 0.03, 0.9])
    np.testing.assert_allclose(found, [0.04, 0.09, math.nan, 0.09, 0.9])
    assert comparison.correct_by_holm([0.9, 0.8]) == [1.0, 1.0]


def test_the_table_marks_selections_on_test_examples():
    rows = [Row("fedavg", "lr=1", [0.5, 0.6]), Row("fedld", "lr=2", [0.6, 0.7]), Row("fedld", "x", [0.9, 0.9], True)]
    table = comparison.make_table("title", rows, "note")
    assert [label for label, _ in table.rows] == ["fedavg", "fedld", "fedld (oracle)"]
    assert table.rows[1][1][1].startswith("10.0") and table.rows[2][1][1] == "" and "upper bound" in table.note
    lines = list(csv.DictReader(comparison.to_csv(rows, [3, 4]).splitlines()))
    assert lines[-1] == {"method": "fedld", "selected_on": "oracle", "values": "x", "seed": "4", "score": "0.9"}


# ---- the command -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "flags, message",
    [
        (["--methods=fedavg"], "no validation examples"),
        (["--methods=fedavg,fedavgg", VALIDATION], "no algorithm 'fedavgg'"),
        (["--methods=fedavg,fedavg", VALIDATION], "'fedavg' is named twice"),
        (["--methods=fedavg", VALIDATION, "--trials=0"], "at least 1"),
        (["--methods=fedavg", VALIDATION, "--halving=1"], "at least 2"),
        (["--methods=fedavg", VALIDATION, "--for=fedld:algorithm.lam=1"], "METHOD:KEY=VALUE"),
        (["--methods=fedavg,fedld", VALIDATION, "--for=fedld:algorithm.epochs=7"], "Make them equal"),
    ],
)
def test_what_cannot_be_compared_is_refused(flags, message, tmp_path, capsys):
    assert study.main([*SMALL, *flags, f"--workdir={tmp_path}"]) == 2
    assert message in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_a_method_of_which_no_trial_finishes_or_has_a_finite_rating_is_a_row_that_says_so(
    tmp_path, monkeypatch, capsys
):
    """fedprox fails, fedcm diverges; and without the reference there is nothing to compare with."""

    def write_run(trial, rating):
        directory = tmp_path / trial.method / trial.text
        directory.mkdir(parents=True, exist_ok=True)
        figures = {"valid/accuracy_mean": rating, "valid/accuracy_weighted": rating, "test/accuracy": 0.5}
        final = {name: {"mean": value, "std": 0.0, "seeds": [value] * 2} for name, value in figures.items()}
        facts = dict.fromkeys(SUMMARY["facts"])
        (directory / "summary.json").write_text(json.dumps({**SUMMARY, "final": final, "facts": facts}))
        client = {"client": "one", "is_newcomer": False, "train": 75, "valid": 100, "test": 0}
        clients = [{**client, "classes": {"a": 40, "b": 35}}]
        (directory / "partition.json").write_text(json.dumps(sample_runs.make_partition(clients)))
        return GridResult(None, directory, "done", 0.0)

    def train(self, trials, folder, extra):
        self.is_whole &= all(trial.method != "fedprox" for trial in trials)
        ratings = {"fedavg": 0.4, "fedcm": None}
        return {trial: write_run(trial, ratings[trial.method]) for trial in trials if trial.method in ratings}

    monkeypatch.setattr(search.Study, "_train", train)
    monkeypatch.setattr(study.compare, "write_tables", lambda results, folder: None)
    flags = [*SMALL, VALIDATION, "--trials=2", "--seeds=2", f"--workdir={tmp_path / 'study'}"]
    (tmp_path / "study").mkdir()
    assert study.main([*flags, "--methods=fedavg,fedprox,fedcm"]) == 1
    text = (tmp_path / "study/study.md").read_text()
    assert "| fedprox | failed |  |  | no trial has a finite rating |" in text and "| fedcm | failed |" in text
    assert len(list(csv.DictReader((tmp_path / "study/study.csv").open()))) == 2
    assert "Warning: fedavg: no trial predicts validation examples better" in text and "the defaults (" in text
    assert "warning: fedavg: no trial predicts" in capsys.readouterr().out
    assert study.main([*flags, "--methods=fedprox,fedavg"]) == 2
    assert "the reference has no finished run" in capsys.readouterr().err


@pytest.mark.slow
def test_a_method_that_is_fedavg_under_another_name_ties_with_it(tmp_path, capsys):
    flags = [*SMALL, VALIDATION, "--methods=fedavg,fedprox,fedcm", "--for=fedprox:algorithm.mu=0", "--trials=4"]
    flags += ["--seeds=3", "--halving=2", "--oracle", f"--workdir={tmp_path}"]
    assert study.main(flags) == 0
    record = json.loads((tmp_path / "study.json").read_text())
    fedavg, fedprox, fedcm = (row for row in record["methods"] if not row["is_bound"])
    assert fedavg["scores"] == fedprox["scores"] and fedavg["chosen"] == fedprox["chosen"]
    assert fedcm["scores"] != fedavg["scores"] and record["seeds"] == [1, 2, 3]
    assert "| fedprox | " in (tmp_path / "study.md").read_text()
    rated = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert len(rated) == 3 * (4 + 2)
    before = (tmp_path / "study.csv").read_text()
    capsys.readouterr()
    assert study.main(flags) == 0
    said = capsys.readouterr().out
    assert "done, " not in said and said.count("was done") == 12 + 6 + len(
        {(row["method"], row["chosen"]) for row in record["methods"]}
    )
    assert (tmp_path / "study.csv").read_text() == before
