"""Studies: draws, selection on validation examples, statistics, and a whole study with a planted method."""

import csv
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats

from experiments.study import __main__ as study
from experiments.study import comparison, search, selection, trials
from experiments.study.comparison import Interval, Row
from experiments.sweep.grid import GridResult
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.errors import InputError
from tests.experiments.runs.test_results import SUMMARY

SMALL = [
    "--config=quickstart",
    "--config.rounds=4",
    "--config.evaluate_every=4",
    "--config.layout=vmapped",
    "--config.data.num_clients=4",
    "--config.cohort_size=2",
    "--config.model.hidden=8,",
]
VALIDATION = "--config.data.valid_fraction=0.2"


# ---- trials ----------------------------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:lam")
def test_every_algorithm_declares_a_space_whose_ends_it_accepts():
    for name, factory in ALGORITHMS.items():
        space = trials.search_space(name)
        assert "learning_rate" in space
        for share in (0.0, 1.0):
            factory(**{argument: option.search.draw(share) for argument, option in space.items()})


def test_trials_depend_on_the_argument_and_not_on_the_method():
    (first, *others), drawn = (trials.draw_trials(name, 4, 7, {}) for name in ("fedavg", "fedprox"))
    assert first.text == "the defaults" and len(others) == 3
    rates = [dict(trial.values)["algorithm.learning_rate"] for trial in others]
    assert [dict(trial.values)["algorithm.learning_rate"] for trial in drawn[1:]] == rates
    assert len(set(rates)) == 3 and all(1e-3 <= float(rate) <= 1 for rate in rates)
    assert all({"algorithm.mu", "algorithm.learning_rate"} == dict(trial.values).keys() for trial in drawn[1:])
    assert trials.draw_trials("fedprox", 2, 8, {})[1] != drawn[1]
    fixed = trials.draw_trials("fedprox", 4, 7, {"algorithm.mu": "0"})
    assert [trial.values for trial in fixed] == [trial.values for trial in trials.draw_trials("fedavg", 4, 7, {})]


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
        (["--methods=fedavg", VALIDATION, "--trials=0"], "at least 1"),
        (["--methods=fedavg", VALIDATION, "--halving=1"], "at least 2"),
        (["--methods=fedavg", VALIDATION, "--for=fedld:algorithm.lam=1"], "METHOD:KEY=VALUE"),
        (["--methods=fedavg,fedld", VALIDATION, "--for=fedld:algorithm.epochs=7"], "Give them the same"),
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
        figures = {"valid/accuracy_mean": rating, "test/accuracy": 0.5}
        final = {name: {"mean": value, "std": 0.0, "seeds": [value] * 2} for name, value in figures.items()}
        facts = dict.fromkeys(SUMMARY["facts"])
        (directory / "summary.json").write_text(json.dumps({**SUMMARY, "final": final, "facts": facts}))
        return GridResult(None, directory, "done", 0.0)

    def train(self, some, folder, extra):
        self.is_whole &= all(trial.method != "fedprox" for trial in some)
        ratings = {"fedavg": 0.4, "fedcm": None}
        return {trial: write_run(trial, ratings[trial.method]) for trial in some if trial.method in ratings}

    monkeypatch.setattr(search.Study, "_train", train)
    monkeypatch.setattr(study.compare, "write_tables", lambda results, folder: None)
    flags = [*SMALL, VALIDATION, "--trials=2", "--seeds=2", f"--workdir={tmp_path / 'study'}"]
    (tmp_path / "study").mkdir()
    assert study.main([*flags, "--methods=fedavg,fedprox,fedcm"]) == 1
    text = (tmp_path / "study/study.md").read_text()
    assert "| fedprox | failed |  |  | no trial has a finite rating |" in text and "| fedcm | failed |" in text
    assert len(list(csv.DictReader((tmp_path / "study/study.csv").open()))) == 2
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
