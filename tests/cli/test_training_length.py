"""The length of a training: more rounds continue a finished run, and early stopping ends one."""

import json
import shutil

import numpy as np
import pytest

from fedjax_het import EarlyStopping, data, models, simulate
from fedjax_het.algorithms import fedavg
from fedjax_het.cli import train
from fedjax_het.cli.configuration import config_files, settings
from fedjax_het.cli.runs.run_directory import RunDirectory
from fedjax_het.cli.training.recorder import RunRecorder
from fedjax_het.errors import InputError

pytestmark = pytest.mark.usefixtures("compiled_once")
STOP = ["--config.data.valid_fraction=0.2", "--config.rounds=40", "--config.stop.metric=valid/accuracy"]


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def results(directory):
    """The results of a run, without its timings."""
    files = [(directory / file).read_text() for file in ("metrics.jsonl", "selected.jsonl")]
    lines = [[{**json.loads(line), "seconds": 0} for line in text.splitlines()] for text in files]
    return [*lines, (directory / "per_client.csv").read_text(), RunDirectory(directory).read("summary.json")["final"]]


# ---- more rounds -----------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_a_finished_run_that_continues_ends_like_a_run_of_all_rounds(config, tmp_path, capsys):
    """Its last round is between two evaluations and has no line."""

    def run(name, rounds):
        flags = [f"--config={config}", f"--workdir={tmp_path / name}", f"--config.rounds={rounds}"]
        return train.main([*flags, "--config.data.valid_fraction=0.2"])

    assert run("short", 3) == 0
    capsys.readouterr()
    assert run("short", 6) == 0 and run("whole", 6) == 0
    out = capsys.readouterr().out
    assert "note: the run of 3 rounds" in out and "continues to round 6" in out
    short = results(tmp_path / "short")
    assert short == results(tmp_path / "whole") and {line["round"] for line in short[0]} == {2, 4, 6}
    assert run("short", 3) == 2
    assert "config.rounds: 6 / 3" in capsys.readouterr().err


@pytest.mark.extended
def test_a_run_does_not_continue_on_other_pictures_of_the_same_names_and_labels(tmp_path, capsys):
    config, images = tmp_path / "arrays.py", np.arange(60 * 16, dtype=np.uint8).reshape(60, 4, 4)
    data = {"name": "arrays", "path": str(tmp_path / "data.npz"), "num_clients": 3, "partition": {"name": "iid"}}
    settings = {"algorithm": {"name": "fedavg"}, "model": {"name": "mlp", "hidden": ()}, "data": data, "rounds": 1}
    config.write_text(f"def get_config():\n    return {settings}\n")
    command = [f"--config={config}", f"--workdir={tmp_path / 'run'}"]
    np.savez(data["path"], images=images, labels=np.arange(60) % 2)
    assert train.main(command) == 0
    np.savez(data["path"], images=255 - images, labels=np.arange(60) % 2)
    assert train.main([*command, "--config.rounds=2"]) == 2
    assert "made on other data" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["4", "4/state"])
def test_a_run_without_its_last_checkpoint_does_not_continue(config, tmp_path, capsys, name):
    flags = [f"--config={config}", f"--workdir={tmp_path}"]
    assert train.main(flags) == 0
    shutil.rmtree(tmp_path / "checkpoints" / name)
    before = contents(tmp_path)
    assert train.main([*flags, "--config.rounds=6"]) == 2
    assert "the checkpoint of its last round, 4, is missing or damaged" in capsys.readouterr().err
    assert contents(tmp_path) == before


# ---- early stopping --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("metric", "delta", "scores", "end"),
    [
        ("valid/accuracy_mean", 0.0, [[0.1], [0.2], [0.2], [0.1], [0.9]], 3),
        ("valid/accuracy_mean", 0.0, [[0.1], [0.2], [0.1], [0.3], [0.2]], None),
        ("valid/accuracy_mean", 0.2, [[0.1], [0.2], [0.25], [0.9]], 2),
        ("valid/accuracy_std", 0.0, [[0.3], [0.2], [0.1], [0.0]], None),
        ("valid/accuracy_gini", 0.0, [[0.1], [0.2], [0.3]], 2),
        ("valid/loss_mean", 0.0, [[3.0], [2.0], [None], [2.0]], 3),
        ("test/perplexity", 0.0, [[3.0], [2.0], [1.0]], None),
        ("valid/calibration_error_worst10", 0.0, [[0.1], [0.2], [0.3]], 2),
        ("valid/macro_f1_min", 0.0, [[0.1], [0.2], [0.3]], None),
        ("valid/accuracy_mean", 0.0, [[0.3, 0.1], [0.2, 0.2], [0.1, 0.1], [0.4, 0.1]], 3),
    ],
)
def test_training_ends_after_evaluations_without_improvement_of_every_seed(metric, delta, scores, end):
    assert EarlyStopping(metric, patience=2, min_delta=delta).find_end(scores) == end


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["save", "finish"])
def test_a_run_that_is_killed_at_its_stop_ends_with_the_same_results(config, tmp_path, monkeypatch, capsys, killed):
    """It is killed before its last checkpoint or its summary; then it is completed, also with more rounds."""

    def run(name, *more):
        return train.main([f"--config={config}", f"--workdir={tmp_path / name}", *STOP, *more])

    assert run("whole", "--config.stop.patience=1") == 0
    end = RunDirectory(tmp_path / "whole").read("summary.json")["rounds"]
    assert f"training stops after round {end}, because valid/accuracy_mean" in capsys.readouterr().out and end < 40

    def kill(self, *given):
        if given[0] == end or killed == "finish":
            raise KeyboardInterrupt
        return save(self, *given)

    with monkeypatch.context() as patch:
        save = RunRecorder.save
        patch.setattr(RunRecorder, killed, kill)
        assert run("killed", "--config.stop.patience=1") == 130
    assert not (tmp_path / "killed" / "summary.json").exists()
    assert run("killed", "--config.stop.patience=1") == 0
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    assert [(tmp_path / name / "checkpoints" / str(end)).is_dir() for name in ("killed", "whole")] == [True, True]
    before = contents(tmp_path / "whole")
    assert run("whole", "--config.stop.patience=1", "--config.rounds=60") == 0
    assert contents(tmp_path / "whole") == before


@pytest.mark.slow
def test_runs_of_one_program_stop_each_at_its_own_round(config, tmp_path):
    overrides = dict(text.removeprefix("--config.").split("=") for text in [*STOP, "--config.stop.patience=2"])
    runs = []
    for rate in ("0.001", "0.5"):
        given = overrides | {"algorithm.learning_rate": rate}
        run_settings, _ = settings.complete_settings(config_files.load_config(config), given)
        runs.append(train.Run(run_settings, RunDirectory(tmp_path / rate)))
    train.train_together(runs, {})
    alone = [train.Run(run.settings, RunDirectory(tmp_path / f"{i}")) for i, run in enumerate(runs)]
    ends = []
    for run, single in zip(runs, alone, strict=True):
        train.train_together([single], {})
        assert run.directory.check(run.settings).is_complete
        ends.append([trained.directory.read("summary.json")["rounds"] for trained in (run, single)])
        lines = [(trained.directory / "metrics.jsonl").read_text().splitlines()[-1] for trained in (run, single)]
        assert json.loads(lines[0])["round"] == ends[-1][0]
    assert ends[0][0] == ends[0][1] and ends[1][0] == ends[1][1] and ends[0] != ends[1]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.stop.metric=valid/accuracy"], "config.stop.metric: 'valid/accuracy' is not evaluated"),
        (["--config.stop.metric=test/accuracy", "--config.evaluate_every=40"], "config.stop.patience: "),
        (["--config.stop.patience=3"], "config.stop.metric is required"),
        (["--config.stop.metric=test/loss", "--config.stop.min_delta=-1"], "config.stop.min_delta: "),
    ],
)
def test_a_stop_that_cannot_take_effect_is_refused_before_the_first_round(config, tmp_path, capsys, arguments, message):
    workdir = tmp_path / "run"
    assert train.main([f"--config={config}", f"--workdir={workdir}", "--config.rounds=40", *arguments]) == 2
    assert message in capsys.readouterr().err and not workdir.exists()


@pytest.mark.slow
def test_a_simulation_in_python_stops_early():
    federation = data.toy(num_clients=3, test_fraction=0.3)
    network, stop = models.mlp(federation.num_classes, hidden=()), EarlyStopping("test/accuracy", patience=2)
    whole = simulate(fedavg(), network, federation, rounds=30, evaluate_every=1)
    short = simulate(fedavg(), network, federation, rounds=30, evaluate_every=1, stop=stop)
    end = stop.find_end(whole.evaluation.test.accuracy.T)
    assert short.rounds == whole.rounds[: end + 1] and end < 28
    np.testing.assert_array_equal(short.train_loss, whole.train_loss[:, : end + 1])
    with pytest.raises(InputError, match="'valid/accuracy' is not evaluated"):
        simulate(fedavg(), network, federation, rounds=9, stop=EarlyStopping("valid/accuracy", 1), evaluate_every=1)
