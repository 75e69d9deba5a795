"""A report of the files that fedjax_het.cli.train writes."""

import json

import numpy as np
import pytest

from fedjax_het.cli import train
from fedjax_het.cli.report import page
from fedjax_het.cli.report.contents import make_contents
from fedjax_het.cli.runs.results import read_runs
from fedjax_het.errors import InputError

pytestmark = pytest.mark.extended

CONFIG = """
def get_config():
    return dict(
        algorithm=dict(name="fedavg", batch_size=16, epochs=1),
        model=dict(name="mlp", hidden=(8,)),
        data=dict(
            name="digits", num_clients=4, valid_fraction=0.2, client_test_fraction=0.2,
            partition=dict(name="dirichlet", alpha=0.5),
        ),
        rounds=4, cohort_size=3, evaluate_every=2, num_seeds=2, layout="vmapped",
        diagnostics="conflict,norms,landscape", diagnose_every=2,
    )
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    (folder / "config.py").write_text(CONFIG)
    assert train.main([f"--config={folder / 'config.py'}", f"--workdir={folder / 'run'}"]) == 0
    return folder / "run"


@pytest.mark.slow
def test_the_report_has_the_figures_of_the_summary(run):
    told = make_contents(*read_runs([run]))
    summary = json.loads((run / "summary.json").read_text())
    results = next(table for table in told.tables if table.name == "results")
    found = dict(zip(results.columns, results.rows[0][1], strict=True))
    for when, figures in (("last", summary["final"]), ("selected", summary["selected"]["figures"])):
        for column, name in (("test set", "test/accuracy"), ("clients", "clients/accuracy_mean")):
            assert found[f"{column}, {when}"][:2] == pytest.approx([figures[name]["mean"], figures[name]["std"]])
    fairness = next(table for table in told.tables if table.name == "fairness_clients")
    worst = fairness.rows[0][1][fairness.columns.index("worst tenth")]
    assert worst.mean == pytest.approx(summary["final"]["clients/accuracy_worst10"]["mean"])


def test_all_output_of_a_run_is_drawn(run):
    told = make_contents(*read_runs([run]))
    names = {figure.name for figure in told.figures}
    assert {"curves", "clients", "partition", "conflict", "conflict_cosines", "norms_values", "landscape"} <= names
    assert "conflict_cosines" in page.render_page(told, "files", is_watched=False)
    while_running = run.parent / "running"
    while_running.mkdir()
    for name in ("config.json", "resolved.json", "partition.json", "diagnostics.jsonl"):
        (while_running / name).write_text((run / name).read_text())
    (while_running / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text()[:-10])
    told = make_contents(*read_runs([while_running]))
    assert told.rows[0].first.done == 2 and told.lead == ["1 of 1 runs are not finished."]


def test_confusion_matrices_and_the_section_of_a_client_agree_with_its_figures(run):
    told = make_contents(*read_runs([run]), client="client_002", has_confusion=True)
    (found,) = told.rows[0].runs
    figures = {figure.name: figure.views for figure in told.figures}
    shares, counts = (np.array(view.panels[0].marks[0].z) for view in figures["confusion"])
    assert np.trace(counts) / counts.sum() == pytest.approx(found.final["test/accuracy"]["mean"])
    np.testing.assert_allclose(shares, counts / counts.sum(axis=1, keepdims=True))
    last = [float(row["accuracy"]) for row in found.clients if row["client"] == "client_002"]
    curves = figures["client_scores"][0].panels[0].marks
    assert [curve.y[-1] for curve in curves] == last and all(curve.x[-1] == 4 for curve in curves)
    own = np.array(figures["client_confusion"][1].panels[0].marks[0].z)
    client = found.partition["clients"][2]
    assert own.sum() == 2 * client["test"] and np.trace(own) / own.sum() == pytest.approx(np.mean(last))
    table = next(table for table in told.tables if table.name == "client_data")
    expected = [client["train"], client["valid"], client["test"], *client["classes"].values()]
    assert table.rows[0][1] == list(map(str, expected))
    with pytest.raises(InputError, match="--client: no run has a client 'client_9'"):
        make_contents(*read_runs([run]), client="client_9")
