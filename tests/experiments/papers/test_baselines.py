"""The comparison of all algorithms, and FL-Simulator's table."""

import csv
import re

import jax
import pytest

from experiments.papers import __main__ as papers
from experiments.papers import baselines, fl_simulator
from fedjax_het import data, models
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import ALGORITHMS, FAMILIES
from fedjax_het.cli.configuration import build
from fedjax_het.engine import make_round
from fedjax_het.errors import InputError
from tests.experiments.papers.test_facts import NUMBER
from tests.shared import shared_path


def trace(name):
    """Trace a round of an algorithm with a network as in the comparison."""
    public = {"public": 0.2} if "data.public.name" in baselines.NEEDED.get(name, {}) else {}
    sizes = {"num_clients": 3, "examples_per_client": (500, 600)}
    federation = data.toy(image=(12, 12, 1), valid_fraction=0.2, **sizes, **public)
    network = models.mlp(federation.num_classes, hidden=(8,))
    round = make_round(ALGORITHMS[name](), network, federation.num_clients, prepare=federation.prepare)
    key = make_key(0)
    jax.eval_shape(round.step_with_messages, jax.eval_shape(round.init, key, federation.data), federation.data, key)


@pytest.mark.parametrize("what", ["fashion_mnist", "cifar10"])
def test_every_algorithm_is_compared_or_said_to_be_unsuited(what):
    experiment = baselines.EXPERIMENTS[what]
    assert experiment.rows.keys() | baselines.LEFT_OUT.keys() == ALGORITHMS.keys() | baselines.SELECTIONS.keys()
    for name in baselines.LEFT_OUT:
        assert any(f"`{name}` is left out" in caveat for caveat in experiment.caveats)


@pytest.mark.extended
@pytest.mark.parametrize("name", baselines.UNSUITED)
def test_an_unsuited_algorithm_refuses_the_network(name):
    with pytest.raises(InputError):
        trace(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in baselines.LEFT_OUT])
def test_every_other_algorithm_takes_the_network(name):
    trace(name)


@pytest.mark.slow
def test_runs_of_one_algorithm_and_partition_differ_in_the_rate_alone():
    experiment = baselines.EXPERIMENTS["fashion_mnist"]
    runs = [experiment.make_runs("cpu", {}, {}, rate) for rate in experiment.choices]
    for place in runs[0]:
        settings = [run[place].settings() for run in runs]
        rates = [table["algorithm"].pop("learning_rate") for table in settings]
        assert rates == [0.03, 0.1, 0.3] and settings[0] == settings[1] == settings[2]
        assert settings[0]["algorithm"]["epochs"] == 1 and settings[0]["num_seeds"] == 3
        assert settings[0]["data"]["valid_fraction"] > 0


@pytest.mark.extended
def test_selections_fit_the_smoke_scale():
    runs = baselines.EXPERIMENTS["fashion_mnist"].make_runs("smoke", {}, {}, "0.1")
    for row in baselines.SELECTIONS:
        settings = runs[row, "alpha 0.5"].settings()
        parts = build.build_parts(settings)
        assert 2 <= parts.participation.size(parts.federation.num_clients) <= 20
        parts.participation.check_run(settings["rounds"])


def test_every_personal_algorithm_is_compared_by_domain_on_digits():
    assert baselines.DIGITS.rows.keys() == {"fedavg", "local", *(f.__name__ for f in FAMILIES["Personal models"])}
    runs = baselines.DIGITS.make_runs("cpu", {}, {"digits": "digits"}, "0.1")
    for row in baselines.DIGITS.rows:
        assert len({run.name for (name, _), run in runs.items() if name == row}) == 1  # columns are clients of one run


def test_every_algorithm_for_domain_shift_is_compared_on_pacs():
    assert baselines.PACS.rows.keys() >= {algorithm.__name__ for algorithm in FAMILIES["Domain shift"]}
    runs = baselines.PACS.make_runs("cpu", {}, {"pacs": "PACS"}, "0.1")
    assert {run.settings()["data"]["unseen"] for run in runs.values()} == set(baselines.DOMAINS)
    assert not any(run.settings()["data"]["standardise"] for run in runs.values())


@pytest.mark.slow
def test_the_comparison_is_trained_at_the_smoke_scale(tmp_path, capsys, monkeypatch):
    two = {name: baselines.EXPERIMENTS["cifar10"].rows[name] for name in ("fedavg", "fedper")}
    monkeypatch.setitem(baselines.EXPERIMENTS, "cifar10", baselines.EXPERIMENTS["cifar10"]._replace(rows=two))
    arguments = ["baselines", "--what=cifar10", "--scale=smoke", f"--workdir={tmp_path}"]
    assert papers.main(arguments) == 0
    rows = list(csv.DictReader((tmp_path / "cifar10-smoke.csv").open(newline="")))
    assert [row["row"] for row in rows] == ["fedavg", "fedper"] * 2
    assert all(0 <= float(row["mean"]) <= 100 and row["choice"] in baselines.RATES for row in rows)
    assert papers.main(arguments) == 0
    assert capsys.readouterr().out.count("was done") == 6


@pytest.mark.parametrize(("what", "place"), [("100_clients", 0), ("200_clients", 4)])
def test_printed_values_of_fl_simulator_are_those_of_its_table(what, place):
    text = (shared_path("specs") / "algorithms_c.md").read_text()
    table = text.partition("## 9. Reported numbers")[2].partition("\n## ")[0].splitlines()
    printed = fl_simulator.EXPERIMENTS[what].printed["accuracy"]
    for row, values in printed.items():
        (line,) = [line for line in table if line.startswith(f"| {row} |")]
        assert [float(x) for x in re.findall(NUMBER, line)][place : place + 4] == values
    assert set(fl_simulator.METHODS) - set(printed) == {"FedSAM"}


@pytest.mark.extended
def test_the_published_setting_of_fl_simulator():
    for what, size in (("100_clients", 50), ("200_clients", 25)):
        runs = fl_simulator.EXPERIMENTS[what].make_runs("paper", {}, {})
        for (row, column), run in runs.items():
            settings = run.settings()
            algorithm, table = settings["algorithm"], settings["data"]
            assert (settings["rounds"], settings["cohort_size"], algorithm["batch_size"]) == (1000, 10, size)
            assert (algorithm["learning_rate"], algorithm["epochs"]) == (0.1, 5)
            assert algorithm["weight_decay"] == (0.0 if row in ("SCAFFOLD", "FedGamma") else 0.001)
            assert algorithm["learning_rate_schedule"]["factor"] == (0.9995 if row == "FedDyn" else 0.998)
            assert algorithm.get("clip", 10.0) == 10.0 and algorithm.get("server_learning_rate", 1.0) == 1.0
            assert (settings["model"]["name"], settings["model"]["norm"]) == ("resnet18", "group")
            assert table["partition"]["name"] == ("iid" if column == "IID" else "dirichlet")
            assert column == "IID" or table["partition"]["alpha"] == float(column.removeprefix("Dir "))
            assert table["valid_fraction"] == table["client_test_fraction"] == 0
    rho = {row: run.settings()["algorithm"].get("rho") for (row, _), run in runs.items()}
    assert (rho["FedGamma"], rho["FedSAM"], rho["FedSMOO"]) == (0.01, 0.1, 0.1)
