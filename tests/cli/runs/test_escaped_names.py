"""A run whose classes, domains and data set have names that Matplotlib, Markdown, rich or a terminal would interpret
as markup: it trains and is reported, and the names are shown literally."""

import csv
import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from fedjax_het.cli import train
from fedjax_het.cli.runs import plots
from fedjax_het.cli.runs.figures import Panel, View, partition_heat

FILE = """
def get_config():
    return dict(
        algorithm=dict(name="fedavg", batch_size=20),
        model=dict(name="mlp", hidden=()),
        data=dict(
            name="arrays", path={path!r}, num_clients=3, client_test_fraction=0.2, partition=dict(name="by_domain"),
            unseen="[/x] $y^{{",
        ),
        rounds=2, evaluate_every=1, checkpoint_every=1, layout="vmapped",
    )
"""
CLASSES, DOMAINS = ["$x_{", "a\nb", "^"], ["$x_{", "a\nb", "漢 | *", "[/x] $y^{"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    generator = np.random.default_rng(0)
    arrays = {
        "images": generator.random((80, 5), np.float32),
        "labels": np.arange(80) % 3,
        "domains": np.arange(80) % 4,
    }
    np.savez(folder / "$a_{.npz", **arrays, class_names=CLASSES, domain_names=DOMAINS)
    (folder / "config.py").write_text(FILE.format(path=str(folder / "$a_{.npz")))
    assert train.main([f"--config={folder / 'config.py'}", f"--workdir={folder / 'run'}"]) == 0
    return folder / "run"


@pytest.mark.slow
def test_all_files_are_written_and_tables_have_one_line_per_row(workdir):
    assert {"summary.json", "per_client.csv", "curves.png", "partition.png"} <= {
        path.name for path in workdir.iterdir()
    }
    assert "unseen/[/x] $y^{/accuracy" in json.loads((workdir / "summary.json").read_text())["final"]
    text = (workdir / "per_client.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["client"] for row in rows] == ["$x_{", r"a\nb", "漢 | *"]
    assert text.count("\n") == 1 + len(rows)


@pytest.mark.slow
def test_a_complete_run_prints_its_table_without_interpreting_markup(workdir, capsys):
    config = workdir.parent / "config.py"
    assert train.main([f"--config={config}", f"--workdir={workdir}"]) == 0
    assert "unseen/[/x] $y^{/accuracy" in capsys.readouterr().out


@pytest.mark.slow
def test_the_report_shows_names_literally(workdir, tmp_path, capsys):
    pytest.importorskip("plotly")
    from fedjax_het.cli.report import __main__ as report

    assert report.main([str(workdir), f"--out={tmp_path / 'report.html'}"]) == 0
    assert "warning" not in capsys.readouterr().out
    shown = {element.text for element in ElementTree.parse(tmp_path / "report_files/partition_shares.svg").iter()}
    assert {"$x_{", r"a\nb", "^", r"\u6f22 | *"} <= shown
    rows = (tmp_path / "report_files" / "clients.md").read_text().splitlines()
    assert r"\$x_{" in rows[2] and r"\| \*" in rows[2]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("$x_{", r"\$x_{"),
        ("a\nb", r"a\nb"),
        ("é ± …", "é ± …"),
        ("漢", r"\u6f22"),
        ("\udce9", r"\udce9"),
        ("\\$", "\\\\$"),
    ],
)
def test_labels_are_escaped_for_matplotlib(name, shown):
    assert plots.escape_label(name) == shown


def test_long_labels_are_shortened(tmp_path):
    assert len(plots.escape_label("x" * 10_000)) == 60
    classes = {"z" * 10_000: 1, "$": 1}
    heat = partition_heat([{"client": name, "classes": classes} for name in ("x" * 10_000, "y")], "examples")
    drawing = plots.draw_view(View("", [Panel("", "client", "class", [heat])]))
    plots.save(drawing, tmp_path / "partition.png")
    plots.plt.close(drawing)
    assert (tmp_path / "partition.png").read_bytes()[:4] == b"\x89PNG"
