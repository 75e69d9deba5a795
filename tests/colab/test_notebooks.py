"""The notebooks, executed at a small scale."""

import json
import re
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from tests.shared import ROOT

SMALL = {
    "quickstart": "ROUNDS, SEEDS = 4, 2",
    "your_own_algorithm": "ROUNDS = 2",
    "diagnostics": "ALPHAS, ROUNDS = (100.0, 0.1), 2",
    "scaling_tpu": "COHORTS, ROUNDS = (4, 8), 1",
    "pretrained": 'REPOSITORY, SIZE, CLIENTS, ROUNDS = "", 16, 4, 2',
}
PRINTED = {
    "quickstart": ["over 2 seeds"],
    "your_own_algorithm": [" passed"],
    "diagnostics": ["pairs in conflict"],
    "scaling_tpu": [" x cpu", "bfloat16: "],
    "pretrained": [" frozen parameters", "fedsalora: mean ", "has the adapted network"],
}
NOTEBOOKS = sorted(path.stem for path in (ROOT / "colab").glob("*.ipynb"))


def read_notebook(name):
    return nbformat.read(ROOT / "colab" / f"{name}.ipynb", as_version=4)


def cell_with_tag(notebook, tag):
    (cell,) = [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]
    return cell


def test_every_notebook_is_listed():
    assert set(NOTEBOOKS) == set(SMALL)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_have_a_badge_an_install_cell_and_no_output(name):
    notebook = read_notebook(name)
    nbformat.validate(notebook)
    assert f"/blob/main/colab/{name}.ipynb)" in notebook.cells[0].source
    assert "fedjax_het" in cell_with_tag(notebook, "install").source
    assert re.match(r"[A-Z_, ]+ = ", cell_with_tag(notebook, "parameters").source)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


@pytest.mark.extended
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "quickstart" else pytest.mark.slow) for name in NOTEBOOKS]
)
def test_notebooks_run_from_top_to_bottom(name, tmp_path, monkeypatch):
    notebook = read_notebook(name)
    cell_with_tag(notebook, "install").source = ""
    cell_with_tag(notebook, "parameters").source = SMALL[name]
    # The kernel of this environment, not of the user's installed kernels.
    kernels = tmp_path / "jupyter" / "kernels" / "python3"
    kernels.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernels / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "here", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    clone = tmp_path / "clone"
    clone.mkdir()
    for path in ROOT.iterdir():
        (clone / path.name).symlink_to(path)
    done = NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(clone)}}).execute()
    ran = [cell for cell in done.cells if cell.cell_type == "code" and cell.source]
    assert [cell.execution_count for cell in ran] == list(range(1, len(ran) + 1))
    printed = "".join(out.get("text", "") for cell in ran for out in cell.outputs)
    assert all(text in printed for text in PRINTED[name])
