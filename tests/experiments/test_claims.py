"""Claims: the rule of decision on planted effects, the experiments' settings, and the tables of the page."""

import csv
import json
import shutil

import numpy as np
import pytest
from sklearn.datasets import load_digits

from experiments import measures, verdicts
from experiments.claims import __main__ as claims
from experiments.claims.experiments import TOPICS
from experiments.claims.settings import make_experiment
from experiments.run import Runner, find_folder
from experiments.spec import Claim, Entry, Quantity
from experiments.tables import fill_blocks, read_csv, to_csv
from experiments.verdicts import FAILS, HOLDS, NOT_RUN, OPEN, write_page
from fedjax_het.cli.configuration import build
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.study.comparison import Interval
from fedjax_het.cli.sweep.training import GridResult
from fedjax_het.errors import InputError
from tests.cli.runs.test_results import SUMMARY
from tests.shared import ROOT

EXPERIMENTS = {name: experiment for experiments in TOPICS.values() for name, experiment in experiments.items()}
ACCURACY = Quantity(measures.read_test_score(), "accuracy, %", 0.5)
NOISE = np.array([-0.4, 0.1, 0.3, -0.2, 0.2])  # of seeds
ORDER = Claim("A is above", "Table 1", "A", ("B", "C"))


def decide(differences, margin=0.5):
    return verdicts.decide(Interval.of(list(differences)), margin)


# ---- the rule --------------------------------------------------------------------------------------------------------
def test_a_planted_effect_holds_and_its_reverse_does_not():
    assert decide(2 + NOISE) == HOLDS
    assert decide(-2 + NOISE) == FAILS
    assert decide(10 * NOISE + 2) == OPEN


def test_a_difference_within_the_margin_does_not_hold():
    assert decide(NOISE, margin=0.5) == FAILS
    assert decide(NOISE, margin=0.3) == OPEN
    assert decide([0.0] * 5) == FAILS  # the same method under two names
    assert decide(0.2 + 0.1 * NOISE) == HOLDS  # small, and certain


def test_a_single_seed_tells_nothing():
    assert decide([5.0]) == OPEN


def test_half_of_noise_without_effect_is_seldom_called_an_effect():
    drawn = np.random.default_rng(0).normal(0, 1, (2000, 5))
    found = [decide(differences, 0.0) for differences in drawn]
    assert 0.015 < found.count(HOLDS) / 2000 < 0.035 and 0.015 < found.count(FAILS) / 2000 < 0.035


def judge(claim, **values):
    return verdicts.judge(claim, ACCURACY, {("score", name): list(scores) for name, scores in values.items()})


def test_a_claim_against_several_others_needs_each_of_them():
    whole, b, c = judge(ORDER, A=80 + NOISE, B=78 - NOISE, C=77 + NOISE)
    assert [whole.verdict, b.verdict, c.verdict] == [HOLDS] * 3
    assert whole.text == "A is above all of B, C" and whole.difference is None
    assert b.difference.mean == pytest.approx(2) and (b.method.mean, b.other.mean) == pytest.approx((80, 78))
    assert [line.verdict for line in judge(ORDER, A=80 + NOISE, B=78 - NOISE, C=81 + NOISE)] == [FAILS, HOLDS, FAILS]
    assert [line.verdict for line in judge(ORDER, A=80 + NOISE, B=79 - 9 * NOISE, C=77 + NOISE)] == [OPEN, OPEN, HOLDS]


def test_a_reversed_pair_fails_an_order_only_after_holms_correction():
    slight = [-1.0, -0.2, -0.9, -0.1, -0.8]  # p = .031 uncorrected
    assert decide(slight) == FAILS
    assert verdicts.decide_all([slight], [0.5]) == FAILS
    assert verdicts.decide_all([slight, (10 * NOISE).tolist()], [0.5, 0.5]) == OPEN


def test_what_has_not_been_run_is_said():
    assert [line.verdict for line in judge(ORDER, A=80 + NOISE, B=78 - NOISE)] == [NOT_RUN, HOLDS, NOT_RUN]
    assert [line.verdict for line in judge(ORDER, A=80 + NOISE, B=85 - NOISE)] == [FAILS, FAILS, NOT_RUN]
    assert [line.verdict for line in judge(ORDER)] == [NOT_RUN] * 3
    assert judge(ORDER)[0].count == "" and judge(ORDER, A=80 + NOISE, B=78 - NOISE)[0].count == "1 of 1 hold"


def test_a_loss_that_falls_is_a_difference_in_the_direction_of_the_claim():
    loss = Quantity(measures.read_test_score(), "loss", 0.05, is_lower=True, is_relative=True)
    claim = Claim("A has less than", "Fig. 2", "A", ("B",), "loss")

    def verdict(a, b):
        (line,) = verdicts.judge(claim, loss, {("loss", "A"): list(a), ("loss", "B"): list(b)})
        return line.verdict

    assert verdict(10 + NOISE, 20 - NOISE) == HOLDS and verdict(20 + NOISE, 10 - NOISE) == FAILS
    assert verdict(100 + NOISE, 100 - NOISE) == FAILS  # within 5 % of the other
    assert verdict(1 + NOISE, 1 - NOISE) == OPEN


# ---- the experiments -------------------------------------------------------------------------------------------------
@pytest.mark.extended
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_methods_have_valid_settings_the_same_local_steps_and_rates_and_five_seeds(name, tmp_path):
    experiment, steps, folders = EXPERIMENTS[name], set(), set()
    for choice in experiment.choices:
        paths = dict.fromkeys(experiment.scales["cpu"].data, "somewhere")
        for run in experiment.make_runs("cpu", {}, paths, choice).values():
            trial, refit = run.settings(), experiment.make_refit(run).settings()
            assert (refit["seed"], refit["num_seeds"]) == (trial["seed"] + trial["num_seeds"], 5)
            size = np.array([100])
            steps.add((refit["rounds"], int(build.build_algorithm(refit).local_update.num_steps(size)[0])))
            folders.add(find_folder(run, "cpu", tmp_path) / run.name)
            assert trial["data"]["valid_fraction"] > 0 or len(experiment.choices) == 1
    assert len(steps) == 1
    count = len(experiment.rows) * len(experiment.scales["cpu"].columns) * len(experiment.choices)
    assert len(folders) == count, "two methods share a run"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_claims_are_about_methods_and_quantities_that_are_measured(name):
    experiment = EXPERIMENTS[name]
    for claim in experiment.claims:
        assert {claim.method, *claim.others} <= experiment.rows.keys() and claim.quantity in experiment.quantities
        assert claim.method not in claim.others
    assert {claim.quantity for claim in experiment.claims} == experiment.quantities.keys()


def test_the_length_and_the_direction_of_a_step_are_those_of_the_weighted_updates():
    updates = np.array([[3.0, 0, 0], [0, 4.0, 0], [1.0, 1.0, 1.0]])
    lengths = np.linalg.norm(updates, axis=1)
    line = {
        "round": 3,
        "cohort": {"ids": [2, 0, 1], "is_present": [True, True, True]},
        "norms": {"updates": lengths.tolist()},
        "conflict": {"cosines": (updates @ updates.T / np.outer(lengths, lengths)).tolist()},
        "weights": {"weights": [0.9, 0.5, -0.2]},
    }
    run = RunResults("a run")
    run.snapshots = [line]
    run.partition = {"clients": [{"train": size} for size in (10, 20, 30)]}
    mean, step = updates.T @ [0.5, 1 / 6, 1 / 3], updates.T @ [0.9, 0.5, -0.2]
    sizes = np.linalg.norm(step), np.linalg.norm(mean)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunResults, "partition_clients", run.partition["clients"])
        assert measures.read_server_step("length")(run, "") == pytest.approx([sizes[0] / sizes[1]])
        assert measures.read_server_step("cosine")(run, "") == pytest.approx([step @ mean / (sizes[0] * sizes[1])])


# ---- the page --------------------------------------------------------------------------------------------------------
def test_the_tables_of_the_page_are_made_of_its_values(tmp_path):
    """Verdicts agree with the values: neither was edited alone."""
    (tmp_path / "claims.md").write_text((ROOT / "docs/claims.md").read_text())
    shutil.copytree(ROOT / "docs/claims", tmp_path / "claims")
    (tmp_path / "claims/verdicts.csv").unlink()
    write_page(tmp_path / "claims.md", tmp_path / "claims", TOPICS)
    assert (tmp_path / "claims.md").read_text() == (ROOT / "docs/claims.md").read_text()
    assert (tmp_path / "claims/verdicts.csv").read_text() == (ROOT / "docs/claims/verdicts.csv").read_text()


def test_values_are_means_over_columns_and_the_rest_is_not_yet_run(tmp_path):
    methods = {name: {"algorithm.name": "fedavg"} for name in "ABC"}
    words = {"setting": "data", "differs": "all", "columns": {"x": {}, "y": {}}}
    experiment = make_experiment("A title", "cxr", "", {}, methods, {"score": ACCURACY}, (ORDER,), **words)
    values = {("A", "x"): 70, ("A", "y"): 90, ("B", "x"): 60, ("B", "y"): 40, ("C", "x"): 50}
    entries = [Entry("score", *place, None, (x + NOISE).tolist(), choice="0.1") for place, x in values.items()]
    (tmp_path / "claims.md").write_text(
        "before\n<!-- t: made by python -m experiments.claims -->\nstale\n<!-- end -->\n"
        "<!-- summary: made by python -m experiments.claims -->\n<!-- end -->\nz\n"
    )
    (tmp_path / "e.csv").write_text(to_csv(entries))
    write_page(tmp_path / "claims.md", tmp_path, {"t": {"e": experiment}})
    text = (tmp_path / "claims.md").read_text()
    assert text.startswith("before\n<!-- t") and text.endswith("<!-- end -->\nz\n") and "stale" not in text
    assert "| A is above B: accuracy, % (Table 1) | **holds** | 30.0 ± 0.0 | 80.0 ± 0.4 | 50.0 ± 0.4 |" in text
    assert "| A is above C: accuracy, % (Table 1) | **not yet run** |  |  |  |" in text
    assert "Not yet run: C." in text and "At an end" not in text
    lines = list(csv.DictReader((tmp_path / "verdicts.csv").open()))
    assert [line["verdict"] for line in lines] == [NOT_RUN, HOLDS, NOT_RUN]
    write_page(tmp_path / "claims.md", tmp_path, {"t": {"e": experiment}})
    assert (tmp_path / "claims.md").read_text() == text
    (tmp_path / "e.csv").write_text(to_csv([entries[0]._replace(choice="0.3"), *entries[1:]]))
    write_page(tmp_path / "claims.md", tmp_path, {"t": {"e": experiment}})
    assert (
        "Smallest or largest of those tried, so a better one may lie outside the range: A."
        in (tmp_path / "claims.md").read_text()
    )


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--topic=fedxyz"], "unknown"),
        (["--topic=fedmgc_fashion_mnist"], "Fashion-MNIST's .npz"),
        (["--topic=none", "--page=nowhere.md"], "does not exist"),
        (["--topic=none", "--page=without.md"], "without.md: there are 0 places"),
        (["--topic=none", "--seeds=1"], "at least 2"),
        (["--topic=none", "--methods=FedXYZ"], "unknown"),
    ],
)
def test_what_cannot_be_run_is_refused(flags, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/claims.md").write_text((ROOT / "docs/claims.md").read_text())
    (tmp_path / "without.md").write_text("# Claims")
    assert claims.main(flags) == 2
    assert message in capsys.readouterr().err


def test_results_of_earlier_commands_stay_until_their_runs_have_ended(tmp_path, monkeypatch):
    def train(runs, folder):
        (run,) = runs
        (folder / run.name).mkdir(parents=True)
        final = {"test/accuracy": {"mean": 0.5, "std": None, "seeds": [0.5, 0.75]}}
        (folder / run.name / "summary.json").write_text(json.dumps(SUMMARY | {"final": final}))
        is_done = run.own["algorithm.name"] == "fedavg"
        yield GridResult(run, folder / run.name, "done" if is_done else "exit status 1: killed", 1.0)

    monkeypatch.setattr("fedjax_het.cli.sweep.training.run_grid", train)
    methods = {name: {"algorithm.name": name} for name in ("fedld", "fedprox", "fedavg")}
    words = {"setting": "", "differs": "", "rates": ()}
    experiment = make_experiment("", "cxr", "quickstart", {}, methods, {"score": ACCURACY}, (), **words)
    before = [Entry("score", name, "", None, [1.0]) for name in methods]
    two = experiment._replace(rows={name: methods[name] for name in ("fedavg", "fedprox")})
    runner = Runner(two, "cpu", {}, {}, tmp_path)
    assert claims.merge_entries(experiment, before, runner) == before
    runner.train(lambda: None)
    merged = claims.merge_entries(experiment, before, runner)
    assert [(entry.row, entry.seeds) for entry in merged] == [("fedld", [1]), ("fedprox", []), ("fedavg", [50, 75])]


@pytest.mark.slow
def test_the_command_of_the_page_trains_searches_resumes_and_writes(tmp_path, monkeypatch, capsys):
    digits = load_digits()
    arrays = {f"{part}_{name}": values[rows] for part, rows in (("train", slice(0, 1500)), ("test", slice(1500, None)))
              for name, values in (("images", digits.images.astype(np.uint8)), ("labels", digits.target))}  # fmt: skip
    np.savez(tmp_path / "digits.npz", **arrays)
    whole = EXPERIMENTS["fedmgc_fashion_mnist"]
    two = {name: whole.rows[name] for name in ("FedAvg", "FedMGC")}
    searched = whole._replace(rows=two, claims=(Claim("FedMGC is above", "", "FedMGC", ("FedAvg",)),))
    topics = {"fedld": {"fedld_losses": EXPERIMENTS["fedld_losses"]}, "fedmgc": {"searched": searched}}
    monkeypatch.setattr(claims, "TOPICS", topics)
    marks = "".join(
        f"<!-- {name}: made by python -m experiments.claims -->\n<!-- end -->\n" for name in (*topics, "summary")
    )
    (tmp_path / "claims.md").write_text(marks)
    flags = [f"--data=fashion_mnist={tmp_path / 'digits.npz'}", f"--page={tmp_path / 'claims.md'}", "--seeds=3"]
    flags += [f"--workdir={tmp_path / 'runs'}", "--config.rounds=2", "--config.data.num_clients=5"]
    flags += ["--config.cohort_size=0", "--config.model.hidden=8,"]
    assert claims.main(flags) == 0
    entries = read_csv((tmp_path / "claims/fedld_losses.csv").read_text())
    assert {entry.row for entry in entries} == {"FedAvg", "margin only", "principal only"}
    seeds = {(entry.row, entry.measure): entry.seeds for entry in entries}
    assert all(len(values) == 3 for values in seeds.values())
    # The mean and the principal directions are of the same updates.
    assert seeds["FedAvg", "shift"] == seeds["principal only", "shift"] != seeds["margin only", "shift"]
    entries = read_csv((tmp_path / "claims/searched.csv").read_text())
    assert all(entry.choice in whole.choices for entry in entries)
    text = (tmp_path / "claims.md").read_text()
    assert "not yet run" not in text and "FedMGC is above FedAvg" in text
    capsys.readouterr()
    assert claims.main(flags) == 0
    assert ": done, " not in capsys.readouterr().out and (tmp_path / "claims.md").read_text() == text


COMMAND = "python -m docs.page_tables"
PAGE = """# Page

<!-- first: made by python -m docs.page_tables -->
<!-- end -->
between
<!-- second: made by python -m docs.page_tables -->
stale
<!-- end -->
<!-- first: made by python -m experiments.claims -->
of another command
<!-- end -->
"""


@pytest.fixture
def document(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path / "page.md"


def test_a_block_is_replaced_and_nothing_else(document):
    blocks = {"second": r"| a\1 |", "first": "| b |\n"}
    filled = fill_blocks(document, COMMAND, blocks)
    assert filled == PAGE.replace("<!-- end -->\nbetween", "\n| b |\n\n<!-- end -->\nbetween").replace(
        "stale", "\n| a\\1 |\n"
    )
    document.write_text(filled)
    assert fill_blocks(document, COMMAND, blocks) == filled


@pytest.mark.parametrize(("text", "count"), [("# Page", 0), (PAGE.replace("second", "first"), 2)])
def test_a_page_without_a_place_or_with_two_is_refused(document, text, count):
    document.write_text(text)
    with pytest.raises(
        InputError, match=f"page.md: there are {count} places between '<!-- first: made by {COMMAND} -->'"
    ):
        fill_blocks(document, COMMAND, {"first": ""})
