"""Calibration of a run's head on virtual features."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.cli import calibrate, train
from fedjax_het.cli.runs.trained_model import load_model
from fedjax_het.types import Context
from tests.harness import is_equal

pytestmark = pytest.mark.extended

CONFIG = """
def get_config():
    return dict(
        algorithm=dict(name="fedavg", batch_size=8, steps=4),
        model=dict(name="mlp", hidden=(8,)),
        data=dict(name="digits", num_clients=4, partition=dict(name="dirichlet", alpha=0.3)),
        rounds=2, evaluate_every=2, checkpoint_every=2, layout="vmapped",
    )
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrate")
    (folder / "config.py").write_text(CONFIG)
    arguments = [f"--config={folder / 'config.py'}", f"--workdir={folder / 'run'}"]
    assert train.main(arguments) == 0
    return folder / "run"


@pytest.mark.slow
def test_the_head_alone_is_trained_on_the_moments_of_all_features_together(finished):
    model = load_model(finished, for_pytorch=False)
    calibrated, moments = calibrate.calibrate(model, draws=50, learning_rate=0.05)
    before, after = dict(model.variables["params"]), dict(calibrated.variables["params"])
    assert not is_equal(before.pop("classifier"), after.pop("classifier"))
    assert is_equal(before, after)

    data, federation = model.federation.data, model.federation
    rows = np.concatenate([index[:count] for index, count in zip(data.train.index, data.train.count, strict=True)])
    inputs, labels = federation.prepare(data.examples.inputs[rows]), np.asarray(data.examples.labels)[rows]
    context = Context(jnp.ones(len(rows)), jnp.int32(0), make_key(0), False)
    features = np.asarray(model.problem.model.encode(model.variables, inputs, context)[0][0], np.float64)
    np.testing.assert_array_equal(moments.counts, np.bincount(labels, minlength=10))
    for number, (mean, covariance) in enumerate(zip(moments.means, moments.covariances, strict=True)):
        own = features[labels == number]
        np.testing.assert_allclose(mean, own.mean(axis=0), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(covariance, np.cov(own.T), rtol=1e-2, atol=1e-3 * np.abs(covariance).max())


@pytest.mark.slow
def test_the_command_shows_scores_before_and_after(finished, capsys):
    assert calibrate.main([f"--workdir={finished}", "--learning_rate=0"]) == 0
    unchanged = capsys.readouterr().out.splitlines()
    assert unchanged[0].startswith("test/loss: ") or unchanged[0].startswith("test/accuracy: ")
    for line in unchanged:
        before, after = line.split(": ")[1].split(" before, ")
        assert after == f"{before} after"
    assert calibrate.main([f"--workdir={finished}", "--learning_rate=0.05", "--epochs=5"]) == 0
    losses = [line for line in capsys.readouterr().out.splitlines() if line.startswith("test/loss: ")]
    before, after = (float(part.split()[0]) for part in losses[0].removeprefix("test/loss: ").split(", "))
    assert after < before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--draws=0"], "draws: must be a whole number"),
        (["--learning_rate=-1"], "learning_rate: must be"),
        (["--seed=7"], "--seed: the run has the seeds 0, not 7"),
        (["--to=model.npz"], "the run's model 'mlp' has no names in published files"),
    ],
)
def test_what_cannot_work_is_refused_with_status_2(finished, capsys, arguments, message):
    assert calibrate.main([f"--workdir={finished}", *arguments]) == 2
    assert message in capsys.readouterr().err


OPTIONS = {
    "timing": ["--config.timing.name=log_normal", "--config.timing.deadline=6.5"],
    "asynchronous": [
        "--config.timing.name=log_normal",
        "--config.asynchronous.name=fedbuff",
        "--config.asynchronous.concurrency=3",
        "--config.asynchronous.buffer_size=2",
        "--config.cohort_size=1",
    ],
    "uplink": [
        "--config.algorithm.weighting=uniform",
        "--config.uplink.0.name=top_k",
        "--config.uplink.0.feedback=ef21",
        "--config.uplink.1.name=attack_mimic",
        "--config.uplink.1.fraction=0.25",
    ],
    "privacy": [
        "--config.algorithm.weighting=uniform",
        "--config.privacy.epsilon=5",
        "--config.privacy.delta=0.01",
        "--config.uplink.0.name=gaussian_mechanism",
        "--config.uplink.0.norm=1",
        "--config.uplink.0.noise_at=clients",
        "--config.participation.name=poisson",
        "--config.participation.probability=0.5",
    ],
    "aggregator": ["--config.aggregator.name=centred_clipping", "--config.availability=0.8", "--config.num_seeds=2"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [pytest.param(name, marks=[pytest.mark.slow] * (name == "privacy")) for name in OPTIONS]
)
@pytest.mark.parametrize("client_states", ["device", pytest.param("host", marks=pytest.mark.slow)])
def test_a_run_with_any_optional_table_is_calibrated(tmp_path, capsys, options, client_states):
    (tmp_path / "config.py").write_text(CONFIG)
    arguments = [f"--config={tmp_path / 'config.py'}", f"--workdir={tmp_path / 'run'}", *OPTIONS[options]]
    assert train.main([*arguments, f"--config.client_states={client_states}"]) == 0
    capsys.readouterr()
    assert calibrate.main([f"--workdir={tmp_path / 'run'}"]) == 0, capsys.readouterr().err
    assert "test/accuracy: " in capsys.readouterr().out
