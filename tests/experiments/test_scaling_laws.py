"""Scaling laws of client counts: settings of the runs, laws that are fitted, files that are written."""

import csv
import json

import numpy as np
import pytest

from experiments.client_counts import SCALES, Plan, Row
from experiments.scaling_laws import fit_laws, fit_line, main, write_tables
from experiments.tradeoffs import ALGORITHMS
from fedjax_het.cli.configuration import build
from fedjax_het.cli.runs.results import RunResults

PLAN = Plan()
TARGETS = (70.0, 80.0)
TINY = Plan({1: 4, 2: 2, 4: 1}, 6, (6, 40), 2, rounds=4, visits=8, cost_intervals=2, cost_visits=4, cost_rounds=2)


@pytest.mark.extended
def test_every_run_has_valid_settings_and_a_directory_of_its_own():
    all_settings = {}
    for part, scale in SCALES.items():
        runs = PLAN.make_experiment(part).make_runs(scale, {"data.path": "fashion_mnist.npz"}, {})
        assert len(runs) == len(ALGORITHMS) * len(PLAN.counts[part])
        counts = [pair for pair in PLAN.counts[part] for _ in ALGORITHMS]
        for run, (population, cohort) in zip(runs.values(), counts, strict=True):
            settings = run.settings()
            assert all_settings.setdefault(run.name, settings) == settings
            build.build_algorithm(settings)
            assert (settings["cohort_size"], settings["data"]["num_clients"]) == (cohort, population)
            if part != "costs":
                every = settings["evaluate_every"]
                assert PLAN.visits % cohort == 0 and settings["rounds"] >= PLAN.visits // cohort
                assert (PLAN.rounds % every, PLAN.visits // cohort % every) == (0, 0)
    assert len({json.dumps(s, sort_keys=True, default=str) for s in all_settings.values()}) == len(all_settings)


def make_lawful_rows():
    """Rounds 20 (1 + 15 / K), seconds 0.01 + 0.002 K, and memory of 3 MB and 0.1 MB per client."""
    return [
        Row(
            algorithm,
            population,
            cohort,
            by_rounds=[60.0, 62.0],
            by_visits=[70 + 2 * np.log10(population), 70 + 2 * np.log10(population)],
            targets=[20 * (1 + 15 / cohort), None],
            seconds=[9.0, 0.01 + 0.002 * cohort, 0.0001],
            peak_mb=3 + 0.1 * population,
            up_mb=0.1 * cohort,
        )
        for algorithm in ALGORITHMS
        for population, cohort in PLAN.counts["costs"]
    ]


def test_laws_are_found_in_numbers_that_follow_them():
    found = {
        (line[0], line[1], line[2]): [*map(float, line[3:])] for line in fit_laws(PLAN, TARGETS, make_lawful_rows())
    }
    for name in ALGORITHMS:
        a, b, ratio, deviation, points = found["rounds to 70 %", "a + b / K", name]
        assert (a, b, ratio, points) == pytest.approx((20, 300, 15, 6), rel=1e-3) and deviation < 1e-6
        assert found["seconds per round", "a + b K", name][:2] == pytest.approx([0.01, 0.002], rel=1e-3)
        assert found["peak MB", "a + b N", name][:2] == pytest.approx([3, 0.1], rel=1e-3)
        assert found["accuracy after 6,000 visits, %", "a + b log10 N", name][:2] == pytest.approx([70, 2], rel=1e-3)
    assert not any(label == "rounds to 80 %" for label, _, _ in found)


def test_a_line_is_fitted_to_relative_deviations():
    a, b, deviation = fit_line([1, 10, 100, 1000], [2, 11, 101, 2002])
    assert (a, b) == pytest.approx((1, 1), rel=0.5) and 0.2 < deviation < 0.5


class FakeRun(RunResults):
    """A run with given results."""

    def __init__(self, **values):
        self.__dict__.update(values)


def test_a_point_is_read_from_its_runs(tmp_path):
    plan = Plan({10: 10}, rounds=20, visits=400)
    accuracies = {10: (0.5, 0.6), 20: (0.75, 0.69), 30: (0.6, 0.7), 40: (0.7, 0.9)}
    accuracy = FakeRun(
        lines=[
            {"round": number, "seed": seed, "test/accuracy": values[seed], "traffic/up": 1e6 * number}
            for number, values in accuracies.items()
            for seed in (0, 1)
        ]
    )
    seconds = {30: 5.0, 60: 8.0, 90: 14.0}
    cost = FakeRun(
        lines=[{"round": number, "seconds": elapsed} for number, elapsed in seconds.items()],
        summary={"facts": {"peak_bytes": 5e7}},
        resolved={"client_states": "host", "examples": "stream"},
    )
    row = Row("FedAvg", 1000, 10).read_accuracy(plan, TARGETS, accuracy).read_costs(cost)
    assert (row.by_rounds, row.by_visits) == ([75, 69], [70, 90])
    assert row.targets == [25.0, None]  # one seed after 20 rounds, the other after 30; only one reaches 80 %
    assert (row.seconds, row.peak_mb, row.up_mb, row.where) == ([0.1, 0.2], 50, 1, ("host", "stream"))
    other = Row("SCAFFOLD", 1000, 10, status=("exit status 1: no memory", "not run"))
    write_tables("fashion_mnist", plan, [row, other], tmp_path)
    first, second = csv.DictReader((tmp_path / "scaling_fashion_mnist.csv").open())
    assert (first["accuracy after 20 rounds, %"], first["rounds to 70 %"], first["rounds to 80 %"]) == (
        "72.0",
        "25.0",
        "",
    )
    assert (second["accuracy after 20 rounds, %"], second["accuracy"]) == ("", "exit status 1: no memory")


def test_data_of_another_name_are_refused(tmp_path, capsys):
    assert main([f"--data={tmp_path / 'mnist.npz'}", f"--out={tmp_path / 'out'}"]) == 2
    assert "fashion_mnist.npz and cifar10.npz" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.extended
def test_a_command_that_is_stopped_writes_what_is_done(tmp_path, monkeypatch, capsys):
    def stop(runs, workdir):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr("fedjax_het.cli.sweep.training.run_grid", stop)
    (tmp_path / "cifar10.npz").touch()
    flags = [f"--data={tmp_path / 'cifar10.npz'}", f"--workdir={tmp_path / 'runs'}", f"--out={tmp_path / 'out'}"]
    assert main(flags) == 130 and "the same command resumes" in capsys.readouterr().err
    rows = list(csv.DictReader((tmp_path / "out" / "scaling_cifar10.csv").open()))
    assert {row["accuracy"] for row in rows} == {"not run"}


@pytest.mark.slow
def test_the_command_at_a_small_scale_is_resumed(tmp_path, monkeypatch):
    generator, sizes = np.random.default_rng(0), {"train": 200, "test": 50}
    images = {f"{split}_images": generator.integers(0, 256, (n, 8, 8), np.uint8) for split, n in sizes.items()}
    labels = {f"{split}_labels": np.arange(n, dtype=np.int32) % 10 for split, n in sizes.items()}
    np.savez(tmp_path / "fashion_mnist.npz", **images, **labels)
    flags = [f"--data={tmp_path / 'fashion_mnist.npz'}", f"--workdir={tmp_path / 'runs'}", f"--out={tmp_path / 'out'}"]
    for name in ("FedLD", "FedMGC"):  # they differ in settings alone, which a quick test checks
        monkeypatch.delitem(ALGORITHMS, name)
    assert main([*flags, "--parts=cohorts"], TINY) == 0
    rows = list(csv.DictReader((tmp_path / "out" / "scaling_fashion_mnist.csv").open()))
    assert {row["cost"] for row in rows} == {"not run"} and [row["accuracy"] for row in rows].count("done") == 6
    assert main(flags, TINY) == 0
    rows = list(csv.DictReader((tmp_path / "out" / "scaling_fashion_mnist.csv").open()))
    assert {(row["accuracy"], row["cost"]) for row in rows} == {("done", "done")} and len(rows) == 8
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert main(flags, TINY) == 0
    assert written == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert "clients per round" in (tmp_path / "out" / "scaling_fashion_mnist.svg").read_text()
