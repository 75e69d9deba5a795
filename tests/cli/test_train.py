"""The command `train` in this process: errors, exit statuses, and the files of a run."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedjax_het._internal.target_platform import tracing_for
from fedjax_het.cli import train
from fedjax_het.cli.configuration import build, config_files, settings
from fedjax_het.cli.distributed.initialization import DistributedConfig
from fedjax_het.cli.runs.run_directory import RunDirectory
from fedjax_het.cli.training.recorder import WRITTEN
from fedjax_het.engine import OffloadPolicy, chunked
from fedjax_het.engine.planning import autotune
from fedjax_het.errors import InputError
from fedjax_het.models._conv_impl import select_conv_impl
from tests.shared import ROOT

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """The directory of a complete run."""
    workdir = tmp_path_factory.mktemp("runs") / "small"
    assert train.main([f"--config={config}", f"--workdir={workdir}"]) == 0
    return workdir


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


# ---- what a run leaves behind ----------------------------------------------------------------------------------------
@pytest.mark.extended
def test_every_printed_file_exists(finished):
    assert sorted(path.name for path in finished.iterdir()) == sorted(WRITTEN)


def test_metrics_have_one_line_per_evaluation_and_seed(finished):
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [(line["round"], line["seed"]) for line in lines] == [(2, 0), (2, 1), (4, 0), (4, 1)]
    assert {"train/loss", "test/accuracy", "clients/accuracy_mean", "newcomers/accuracy_mean"} <= lines[0].keys()
    assert lines[0]["train/loss"] != lines[1]["train/loss"]
    facts = json.loads((finished / "summary.json").read_text())["facts"]
    assert [line["traffic/up"] for line in lines[::2]] == [2 * 2 * facts["bytes_up"], 4 * 2 * facts["bytes_up"]]
    assert all(line["num_reporting"] == 2 and line["num_dropped"] == 0 for line in lines)


def test_the_summary_agrees_with_the_lines_and_names_the_versions(finished):
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()][-2:]
    summary = json.loads((finished / "summary.json").read_text())
    values = [line["test/accuracy"] for line in lines]
    assert summary["final"]["test/accuracy"] == {"mean": np.mean(values), "std": np.std(values), "seeds": values}
    assert summary["rounds"] == 4 and summary["dropped_uploads"] == [0, 0]
    assert {"python", "jax", "fedjax-het"} <= summary["versions"].keys()
    assert summary["facts"]["num_clients"] == 4 and summary["facts"]["cohort_size"] == 2
    assert summary["partition"] == json.loads((finished / "partition.json").read_text())["fingerprint"]


def test_per_client_csv_has_rows_of_clients_and_newcomers(finished):
    rows = (finished / "per_client.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * (4 + 1)
    assert [row.split(",")[2] for row in rows[1:6]] == ["False"] * 4 + ["True"]


def test_a_complete_run_prints_its_table_again_and_changes_nothing(config, finished, capsys):
    before = contents(finished)
    assert train.main([f"--config={config}", f"--workdir={finished}"]) == 0
    assert "test/accuracy" in capsys.readouterr().out
    assert contents(finished) == before


def test_a_run_without_its_summary_writes_the_rest_from_its_checkpoint(config, finished, capsys):
    before = contents(finished)
    for name in ("summary.json", "per_client.csv", "curves.png"):
        (finished / name).unlink()
    assert train.main([f"--config={config}", f"--workdir={finished}"]) == 0
    assert "round " not in capsys.readouterr().out.replace("after round", "").replace("a round", "")
    after = contents(finished)
    assert after.keys() == before.keys()
    assert after[finished / "per_client.csv"] == before[finished / "per_client.csv"]
    assert after[finished / "metrics.jsonl"] == before[finished / "metrics.jsonl"]


@pytest.mark.extended
def test_a_resumed_run_keeps_the_resolved_values_of_auto(config, finished, monkeypatch, tmp_path):
    """A second choice could differ and change the bits, so choices are reused; other devices choose again."""
    choices = json.loads((finished / "resolved.json").read_text())
    assert choices["layout"] in choices["seconds_a_round"] and choices["reason"].startswith(choices["layout"])
    seen = []

    def simulation(parts, runs, folder):
        seen.append((parts.layout, parts.offload))
        raise InputError("far enough")

    monkeypatch.setattr(build, "build_simulation", simulation)
    (tmp_path / "config.json").write_text((finished / "config.json").read_text())
    assert (choices["client_states"], choices["examples"]) == ("device", "device")
    choices |= {"layout": "chunked(7)", "client_states": "host"}
    anew = "auto", OffloadPolicy("auto", "auto")
    for devices, kept in (
        (choices["devices"], (chunked(7), OffloadPolicy("host", "device"))),
        ("8 x another kind", anew),
    ):
        (tmp_path / "resolved.json").write_text(json.dumps(choices | {"devices": devices}))
        assert train.main([f"--config={config}", f"--workdir={tmp_path}"]) == 2
        assert seen.pop() == kept


@pytest.mark.slow
def test_a_resumed_run_keeps_the_convolution_that_was_timed(config, monkeypatch):
    monkeypatch.setattr(autotune, "time_rounds", lambda *_: [1.0])
    changes = {"model.name": "cnn", "rounds": "2"}
    run_settings, _ = settings.complete_settings(config_files.load_config(config), changes)
    with tracing_for("gpu"):
        parts = build.build_parts(run_settings)
        assert parts.conv == "auto"
        simulation = build.build_simulation(parts, [run_settings], Path())
        resolved = build.describe_resolved(parts, simulation, run_settings)
        assert resolved["conv"] == "lax" and resolved["reason"].startswith(f"{resolved['layout']} with lax")
        again = build.build_parts(run_settings, resolved | {"conv": "im2col"})
    assert again.conv == "im2col" and again.resolved["reason"] == resolved["reason"]


def test_on_an_accelerator_auto_is_timed_with_the_layout(config):
    def conv(**changes):
        model_settings = {"model.name": "cnn", **{key.replace("_", "."): value for key, value in changes.items()}}
        return build.build_parts(settings.complete_settings(config_files.load_config(config), model_settings)[0]).conv

    with tracing_for("gpu"):
        assert conv() == "auto" and conv(layout="vmapped") == "lax" and conv(model_conv="im2col") == "im2col"
    assert conv() == select_conv_impl()


def test_another_config_in_the_directory_is_refused_with_the_difference(config, finished, capsys):
    before = contents(finished)
    assert train.main([f"--config={config}", f"--workdir={finished}", "--config.algorithm.mu=0.5"]) == 2
    assert "config.algorithm.mu: 0.01 / 0.5" in capsys.readouterr().err
    assert contents(finished) == before


# ---- what is refused -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.rounds=0"], "config.rounds: "),
        (["--config.rouds=3"], "Did you mean 'rounds'"),
        (["--config.cohort_size=5"], "config.cohort_size: 5 clients per round, but there are 4"),
        (["--config.algorithm.batch_size=0"], "config.algorithm.batch_size: "),
        (["--config.algorithm.epochs=0"], "config.algorithm.epochs: "),
        (["--config.algorithm.learning_rate=-1"], "config.algorithm.learning_rate: "),
        (["--config.model.hidden=0,"], "config.model.hidden: "),
        (
            ["--config.data.partition.name=dirichlet", "--config.data.partition.alpha=0"],
            "config.data.partition.alpha: ",
        ),
        (["--config.data.num_clients=0"], "config.data.num_clients: "),
        (["--config.data.num_clients=5000"], "config.data"),
        (["--config.data.test_fraction=1.0"], "config.data.test_fraction: "),
        (["--config.data.unseen=sketch"], "config.data.unseen: "),
        (["--config.data.name=arrays", "--config.data.path=/nowhere.npz"], "config.data.path: "),
        (["--config.layout=sharded(64)"], "config.layout: "),
        (["--config.layout=chunk(2)"], "Write auto, vmapped, chunked(4)"),
        (["--config.memory_budget=much"], "config.memory_budget: cannot read 'much'"),
        (["--config.model.cache_features=true"], "config.model: cache_features: no leaf of the model is frozen"),
        (["--config.client_states=gpu"], "config.client_states: unknown option 'gpu'. Known: "),
    ],
    ids=lambda value: value[-1].removeprefix("--config.") if isinstance(value, list) else "",
)
def test_an_input_error_gives_one_message_status_2_and_no_directory(config, tmp_path, capsys, arguments, message):
    workdir = tmp_path / "run"
    assert train.main([f"--config={config}", f"--workdir={workdir}", *arguments]) == 2
    streams = capsys.readouterr()
    assert message in streams.err and streams.err.startswith("error: ")
    assert "compil" not in streams.out and not workdir.exists()


def test_a_directory_that_cannot_be_written_is_refused(config, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert train.main([f"--config={config}", f"--workdir={tmp_path / 'file'}"]) == 2
    assert "--workdir: cannot write" in capsys.readouterr().err


def test_an_unexpected_error_keeps_its_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr(train.config_files, "load_config", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train.main(["--config=quickstart", f"--workdir={tmp_path / 'run'}"])


@pytest.mark.extended
def test_the_command_in_a_process_exits_with_status_2():
    command = [sys.executable, "-m", "fedjax_het.cli.train", "--config=quickstart", "--config.rouds=3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --config.rouds is unknown. Did you mean 'rounds'?")
    assert "Traceback" not in done.stderr


# ---- the command line ------------------------------------------------------------------------------------------------
def test_overrides_are_parsed_with_and_without_an_equals_sign():
    command = train.parse(["--config=a/b.py", "--config.rounds=3", "--config.data.path", "x=y", "--workdir", "here"])
    assert command == (
        (Path("a/b.py"), ""),
        Path("here"),
        {"rounds": "3", "data.path": "x=y"},
        DistributedConfig(),
    )


@pytest.mark.parametrize(
    ("config", "workdir"),
    [("pacs:fedrd", "runs/pacs-fedrd"), ("configs/quickstart.py", "runs/quickstart"), ("x/y.py:big", "runs/y-big")],
)
def test_the_run_directory_is_named_after_the_config(config, workdir):
    assert train.parse([f"--config={config}"]).workdir == Path(workdir)


@pytest.mark.parametrize("arguments", [[], ["--config=a.py", "--wrkdir=x"], ["--conf=a.py"]])
def test_an_unknown_flag_exits_with_status_2(arguments, capsys):
    with pytest.raises(SystemExit) as raised:
        train.parse(arguments)
    assert raised.value.code == 2 and "usage" in capsys.readouterr().err


# ---- uploads that are not finite -------------------------------------------------------------------------------------
DIVERGING = ["--config.algorithm.learning_rate=1e30", "--config.num_seeds=1", "--config.rounds=3"]


@pytest.mark.extended
def test_bits_of_a_compressed_upload_are_printed_and_counted(config, tmp_path, capsys):
    """A linear model of 64 inputs and 10 classes, 4 bits an entry, two scales for each of two tensors."""
    path = tmp_path / "compressed.py"
    stages = [{"name": "clip", "norm": 10.0}, {"name": "quantize"}]
    path.write_text(config.read_text().replace("rounds=4", f"uplink={stages}, layout='chunked(1)', rounds=4"))
    workdir = tmp_path / "compressed"
    assert train.main([f"--config={path}", f"--workdir={workdir}", "--config.uplink.1.levels=16"]) == 0
    bits = 4 * 650 + 2 * 64 + 64
    assert f"up ({bits:,} bits)" in capsys.readouterr().out
    facts = json.loads((workdir / "summary.json").read_text())["facts"]
    assert facts["bits_up"] == bits and facts["bytes_up"] == bits / 8
    line = json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["traffic/bits_up"] == 8 * line["traffic/up"] == 4 * 2 * bits


@pytest.mark.extended
def test_dropped_uploads_are_counted_with_a_warning(config, tmp_path, capsys):
    assert train.main([f"--config={config}", f"--workdir={tmp_path / 'run'}", *DIVERGING]) == 0
    assert "warning: " in capsys.readouterr().out
    assert RunDirectory(tmp_path / "run").read("summary.json")["dropped_uploads"][0] > 0


@pytest.mark.extended
def test_a_run_stops_at_the_first_nonfinite_upload_if_asked(config, tmp_path, capsys):
    arguments = [*DIVERGING, "--config.on_nonfinite=raise"]
    assert train.main([f"--config={config}", f"--workdir={tmp_path / 'run'}", *arguments]) == 1
    assert "sent NaN or infinity" in capsys.readouterr().err
