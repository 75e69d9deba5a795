"""Export of a run's model to PyTorch, and import of the file."""

import jax
import numpy as np
import pytest

from fedjax_het import models
from fedjax_het.cli import export, train
from fedjax_het.cli.configuration import build, settings
from fedjax_het.cli.runs import json_files
from fedjax_het.cli.runs.run_directory import RunDirectory
from fedjax_het.types import Context

pytestmark = pytest.mark.extended

CONFIG = """
def get_config():
    return dict(
        algorithm=dict(name="fedbn", batch_size=8, steps=2),
        model=dict(name="resnet18", stem="small", width=1 / 32, norm="batch", conv="lax"),
        data=dict(name="digits", num_clients=3, partition=dict(name="iid")),
        rounds=2, cohort_size=2, evaluate_every=2, checkpoint_every=2, layout="chunked(1)",
    )
"""


@pytest.fixture(scope="module", params=["device", pytest.param("disk", marks=pytest.mark.slow)])
def finished(request, tmp_path_factory):
    """The directory of a complete run with personal norms; one client never trained."""
    folder = tmp_path_factory.mktemp("export")
    (folder / "config.py").write_text(CONFIG)
    arguments = [f"--config={folder / 'config.py'}", f"--workdir={folder / 'run'}", "--no_compilation_cache"]
    assert train.main([*arguments, f"--config.client_states={request.param}"]) == 0
    return folder / "run"


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
def test_the_exported_model_has_the_accuracy_of_the_run(finished, tmp_path, capsys, ending):
    file = tmp_path / f"model.{ending}"
    assert export.main([f"--workdir={finished}", f"--to={file}"]) == 0
    assert "the model after 2 rounds" in capsys.readouterr().out
    chosen, _ = settings.complete_settings(RunDirectory(finished).read("config.json"))
    _, federation = build.build_federation(chosen["data"])
    network = models.resnet18(10, stem="small", width=1 / 32, norm="batch", conv="lax", pretrained=str(file))
    rows = federation.test.index
    inputs = federation.prepare(federation.examples.inputs[rows])
    context = Context(np.ones(len(rows)), 0, jax.random.key(0), False)
    variables = network.init(jax.random.key(1), inputs[:1])
    (features, _), _ = network.encode(variables, inputs, context)
    found = np.argmax(network.classify(variables["params"], features), axis=-1)
    said = RunDirectory(finished).read("summary.json")["final"]["test/accuracy"]["mean"]
    assert (found == federation.examples.labels[rows]).mean() == pytest.approx(said, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workdir={missing}", "--to=m.npz"], "holds no run. Name the directory"),
        (["--workdir={run}", "--to=m.npz", "--seed=7"], "--seed: the run has the seeds 0, not 7"),
        (["--workdir={run}", "--to=m.pth"], r"\.safetensors"),
        (["--workdir={empty}", "--to=m.npz"], "holds no checkpoint yet"),
        (["--workdir={mlp}", "--to=m.npz"], "the run's model 'mlp' has no counterpart"),
    ],
)
def test_a_run_that_cannot_be_exported_is_refused_with_status_2(
    finished, tmp_path, capsys, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    written = RunDirectory(finished).read("config.json")
    for name, model in (("empty", written["model"]), ("mlp", {"name": "mlp"})):
        (tmp_path / name).mkdir()
        json_files.write(tmp_path / name / "config.json", json_files.to_json(written | {"model": model}))
    places = {name: tmp_path / name for name in ("missing", "empty", "mlp")} | {"run": finished}
    assert export.main([argument.format(**places) for argument in arguments]) == 2
    assert message.replace("\\", "") in capsys.readouterr().err
    assert not list(tmp_path.glob("m.*"))
