"""Training with a privacy budget: the resolved noise, the recorded epsilon, and errors."""

import json

import numpy as np
import pytest

from fedjax_het.cli import train
from fedjax_het.cli.configuration import privacy, settings
from fedjax_het.cli.report import costs, curves
from fedjax_het.cli.report.rows import Row
from fedjax_het.cli.runs.run_directory import RunDirectory
from fedjax_het.errors import InputError
from fedjax_het.privacy import FixedSizeSampling, LocalNoise, PoissonSampling

FILE = """
def get_config():
    return dict(
        algorithm=dict(name="fedavg", batch_size=20, weighting="uniform"),
        model=dict(name="mlp", hidden=()),
        data=dict(name="digits", num_clients=4, partition=dict(name="iid")),
        uplink=({"name": "gaussian_mechanism", "norm": 0.5},),
        participation=dict(name="poisson", probability=0.5, slots=1),
        privacy=dict(epsilon=1.0, delta=1e-3),
        rounds=4, evaluate_every=2, checkpoint_every=2, layout="vmapped",
    )
"""


GIVEN = ["--config.privacy.epsilon=none", "--config.uplink.0.noise_multiplier=4"]


@pytest.fixture
def start(tmp_path, capsys):
    """Run with these overrides; return (exit status, what was printed)."""
    (tmp_path / "private.py").write_text(FILE)

    def run(*overrides: str) -> tuple[int, str]:
        paths = [f"--config={tmp_path / 'private.py'}", f"--workdir={tmp_path / 'run'}"]
        status = train.main([*paths, *overrides])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


@pytest.mark.slow
def test_a_budget_finds_the_noise_and_epsilon_is_written_after_every_evaluation(start, tmp_path):
    status, out = start()
    assert status == 0
    assert "epsilon 1 at delta 0.001 after 4 rounds, to add or remove one client" in " ".join(out.split())
    assert "found no place" in out  # one place for two expected clients
    directory = tmp_path / "run"
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    first, last = (line["privacy/epsilon"] for line in lines)
    assert 0 < first < last == pytest.approx(1.0, rel=1e-3)
    assert f"privacy/epsilon {last:.4f}" in out
    found = json.loads((directory / "config.json").read_text())["uplink"][0]["noise_multiplier"]
    assert json.loads((directory / "resolved.json").read_text())["noise_multiplier"] == found
    # A stopped run resumes with the same noise; another budget is another run.
    complete, _ = settings.complete_settings(settings_of(tmp_path))
    RunDirectory(directory).check_settings(complete)
    assert privacy.resolve_noise(complete, 4, {"noise_multiplier": 7.5})["uplink"][0]["noise_multiplier"] == 7.5
    status, message = start("--config.privacy.epsilon=4")
    assert status == 2 and "config.privacy.epsilon: 1.0 / 4.0" in message


def settings_of(folder) -> dict:
    scope: dict = {}
    exec((folder / "private.py").read_text(), scope)
    return scope["get_config"]()


@pytest.mark.extended
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["--config.privacy.epsilon=none"], "config.privacy.epsilon: neither is set"),
        (["--config.uplink.0.noise_multiplier=1"], "config.privacy.epsilon: both are set"),
        (["--config.uplink.0.name=clip"], "config.privacy: no noise is added"),
        (["--config.privacy.delta=1"], "config.privacy.delta"),
        (["--config.privacy.accountant=rdp"], "fixed number of places"),
        (["--config.cohort_size=2"], "config.cohort_size: 'poisson' draws no fixed number"),
        (["--config.algorithm.weighting=samples", *GIVEN], "plain mean"),
        (["--config.data.standardise=true", *GIVEN], "standardise: the moments of all clients' examples"),
        (["--config.model.norm=batch", "--config.model.hidden=4,", *GIVEN], "buffers: the model has batch_stats"),
    ],
)
def test_what_breaks_the_guarantee_is_refused_before_anything_is_written(start, tmp_path, overrides, message):
    status, out = start(*overrides)
    assert status == 2 and message in out and out.count("error: ") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"cohort_size": 0}, PoissonSampling(1.0)),
        ({"cohort_size": 0, "availability": 0.3}, PoissonSampling(0.3)),
        ({"cohort_size": 5}, FixedSizeSampling(50, 5)),
        ({"cohort_size": 50, "availability": 0.3}, FixedSizeSampling(50, 50)),
        ({"participation": {"name": "poisson", "probability": 0.1, "slots": 9}}, PoissonSampling(0.1, 50, 9)),
        ({"participation": {"name": "poisson", "probability": 0.1, "slots": None}}, PoissonSampling(0.1, 50, 22)),
        ({"noise_at": "clients", "cohort_size": 5}, LocalNoise()),
    ],
)
def test_the_way_in_which_clients_are_drawn_decides_the_accounting(changes, expected):
    stage = {"name": "gaussian_mechanism", "noise_at": changes.pop("noise_at", "server")}
    given = {"cohort_size": 0, "availability": 1.0, "uplink": [stage], **changes}
    assert privacy.make_sampling(given, 50) == expected


def test_no_guarantee_is_claimed_for_traces():
    given = {"cohort_size": 0, "uplink": [{"name": "gaussian_mechanism", "noise_at": "server"}]}
    with pytest.raises(InputError, match="no guarantee is known for clients that are drawn by 'trace'"):
        privacy.make_sampling(given | {"participation": {"name": "trace"}}, 50)


def test_the_report_draws_curves_against_epsilon_and_tabulates_it():
    traffic = {"traffic/down": 1, "traffic/up": 1}

    class Lines:
        lines = [
            {"round": r, "seed": 0, "seconds": r, "test/accuracy": 0.5, "privacy/epsilon": e, **traffic}
            for r, e in ((1, 2.0), (2, 3.0))
        ]
        summary, done, partition = None, 2, None

    rows = [Row("private", 0, [Lines()])]
    figure = curves.make_figure(rows)
    (view,) = [view for view in figure.views if view.name == "by epsilon"]
    assert view.panels[0].marks[0].x == [2.0, 3.0] and np.isfinite(view.panels[0].marks[0].y).all()
    table = costs.make_table(rows)
    assert table.rows[0][1][table.columns.index("epsilon")].mean == 3.0
    Lines.lines = [{name: value for name, value in line.items() if "/eps" not in name} for line in Lines.lines]
    assert "epsilon" not in costs.make_table(rows).columns
