"""Export of a run's model to PyTorch, and import of the file."""

import jax
import numpy as np
import pytest

from fedjax_het import models
from fedjax_het._internal.keys import make_key
from fedjax_het.cli import export, train
from fedjax_het.cli.configuration import build_data, settings
from fedjax_het.cli.runs import json_files
from fedjax_het.cli.runs.run_directory import RunDirectory
from fedjax_het.types import Context

pytestmark = pytest.mark.extended

CONFIG = """
def get_config():
    return dict(
        algorithm=dict(name="{algorithm}", batch_size=8, steps=2, {options}),
        model=dict({model}),
        data=dict(name="digits", num_clients=3, partition=dict(name="iid")),
        rounds=2, cohort_size=2, evaluate_every=2, checkpoint_every=2, layout="chunked(1)",
    )
"""
RESNET = 'name="resnet18", stem="small", width=1 / 32, norm="batch", conv="lax"'
SIZES = {"features": 8, "layers": 1, "heads": 2, "patch": 4}
VIT = f'name="vit", **{SIZES}'


def train_run(folder, algorithm, model, options="", *arguments):
    (folder / "config.py").write_text(CONFIG.format(algorithm=algorithm, options=options, model=model))
    arguments = [f"--config={folder / 'config.py'}", f"--workdir={folder / 'run'}", *arguments]
    assert train.main(arguments) == 0
    return folder / "run"


@pytest.fixture(scope="module", params=["device", pytest.param("disk", marks=pytest.mark.slow)])
def finished(request, tmp_path_factory):
    """The directory of a complete run with personal norms; one client never trained."""
    states = f"--config.client_states={request.param}"
    return train_run(tmp_path_factory.mktemp("export"), "fedbn", RESNET, "", states)


def evaluate(run, network):
    """(the test accuracy of a network's initial weights on the data of a run, that of the run)."""
    chosen, _ = settings.complete_settings(RunDirectory(run).read("config.json"))
    _, federation = build_data.build_federation(chosen["data"])
    rows = federation.test.index
    inputs = federation.prepare(federation.examples.inputs[rows])

    @jax.jit
    def predict(inputs):
        variables = network.init(make_key(1), inputs[:1])
        context = Context(np.ones(len(rows)), 0, make_key(0), False)
        (features, _), _ = network.encode(variables, inputs, context)
        return network.classify(variables["params"], features).argmax(-1)

    said = RunDirectory(run).read("summary.json")["final"]["test/accuracy"]["mean"]
    return (np.asarray(predict(inputs)) == federation.examples.labels[rows]).mean(), said


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
def test_the_exported_model_has_the_accuracy_of_the_run(finished, tmp_path, capsys, ending):
    file = tmp_path / f"model.{ending}"
    assert export.main([f"--workdir={finished}", f"--to={file}"]) == 0
    assert "the model after 2 rounds" in capsys.readouterr().out
    network = models.resnet18(10, stem="small", width=1 / 32, norm="batch", conv="lax", pretrained=str(file))
    found, said = evaluate(finished, network)
    assert found == pytest.approx(said, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedit", "fedexlora", "flora"])
def test_exported_adapters_and_merged_weights_have_the_accuracy_of_the_run(algorithm, tmp_path, capsys):
    rank = "ranks=(2, 3), alpha=4.0" if algorithm == "flora" else "rank=2"
    run = train_run(tmp_path, algorithm, VIT, f"learning_rate=0.5, {rank}")
    assert export.main([f"--workdir={run}", f"--to={tmp_path / 'weights'}"]) == 0
    assert "left out" not in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["model.safetensors"]
    found, said = evaluate(run, models.vit(10, pretrained=str(tmp_path / "weights"), **SIZES))
    assert found == pytest.approx(said, abs=2e-3)  # a class on the boundary

    assert export.main([f"--workdir={run}", f"--to={tmp_path / 'adapters'}", "--adapters"]) == 0
    base = tmp_path / "adapters" / "base"
    assert f"{base}: the weights that they are for" in capsys.readouterr().out
    assert RunDirectory(base.parent).read("adapter_config.json")["base_model_name_or_path"] == str(base)
    adapt = models.pretrained_lora(str(tmp_path / "adapters"))
    found, _ = evaluate(run, adapt(models.vit(10, pretrained=str(base), **SIZES)))
    assert found == pytest.approx(said, abs=2e-3)


def test_a_model_without_published_names_is_refused(tmp_path, capsys):
    run = train_run(tmp_path, "fedavg", 'name="mlp", hidden=()')
    assert export.main([f"--workdir={run}", f"--to={tmp_path / 'm.npz'}"]) == 2
    assert "the run's model 'mlp' has no names in published files" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workdir={missing}", "--to=m.npz"], "holds no run. Name the directory"),
        (["--workdir={run}", "--to=m.npz", "--seed=7"], "--seed: the run has the seeds 0, not 7"),
        (["--workdir={run}", "--to=m.pth"], r"\.safetensors"),
        (["--workdir={empty}", "--to=m.npz"], "holds no checkpoint yet"),
        (["--workdir={run}", "--to=m", "--adapters"], "the run's model has no low-rank adapters"),
        (["--workdir={run}", "--to=m.npz", "--adapters"], "'m.npz' is the name of a file"),
    ],
)
def test_a_run_that_cannot_be_exported_is_refused_with_status_2(
    finished, tmp_path, capsys, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    written = RunDirectory(finished).read("config.json")
    (tmp_path / "empty").mkdir()
    json_files.write(tmp_path / "empty" / "config.json", json_files.to_json(written))
    places = {"missing": tmp_path / "missing", "empty": tmp_path / "empty", "run": finished}
    assert export.main([argument.format(**places) for argument in arguments]) == 2
    assert message.replace("\\", "") in capsys.readouterr().err
    assert not list(tmp_path.glob("m.*"))
