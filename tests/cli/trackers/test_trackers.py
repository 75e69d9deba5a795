"""Trackers: each round is shown once as in the files of the run, and no result depends on them."""

import importlib.util
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from fedjax_het import engine
from fedjax_het.cli import trackers, train
from fedjax_het.cli.distributed.collectives import Processes
from fedjax_het.cli.runs.records import MetricLines, flatten
from fedjax_het.cli.training.recorder import WRITTEN, RunRecorder
from fedjax_het.errors import InputError

CONFIG = """
def get_config():
    return dict(
        algorithm=dict(name="fedprox", mu=0.25, batch_size=20), model=dict(name="mlp", hidden=()),
        data=dict(name="digits", num_clients=3, partition=dict(name="iid")),
        rounds=6, num_seeds=2, seed=3, evaluate_every=2, checkpoint_every=2, layout="vmapped",
        diagnostics="norms,drift", diagnose_every=3,
    )
"""
SETTINGS = {"algorithm": {"name": "fedprox", "mu": 0.1}, "data": {"path": None}, "seed": 0, "num_seeds": 2}


def line(round, seed, loss):
    return {"round": round, "seed": seed, "train/loss": loss, "seconds": round / 2}


def events(folder: Path) -> list[Event]:
    """The event file of one seed, whose records are: size (8 bytes), checksum (4), the event, checksum (4)."""
    (file,) = folder.iterdir()
    data, found = file.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        found.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    return found


def curves(folder: Path) -> dict[tuple[int, str], float]:
    """{(round, figure): value}; raises where a round is shown twice."""
    found = {}
    for event in events(folder):
        for value in event.summary.value:
            if value.HasField("simple_value"):
                assert (event.step, value.tag) not in found
                found[event.step, value.tag] = value.simple_value
    return found


def expected(workdir: Path, seed: int) -> dict[tuple[int, str], float]:
    """All numbers of the run's two files, in the precision of an event file."""
    found = {}
    for prefix, name in (("", "metrics.jsonl"), ("diagnostics/", "diagnostics.jsonl")):
        for line in MetricLines(workdir / name).read():
            numbers = {
                tag: value for tag, value in flatten(line, "/", prefix).items() if isinstance(value, float | int)
            }
            if line["seed"] == seed:
                found |= {(line["round"], tag): float(np.float32(value)) for tag, value in numbers.items()}
    return {(round, tag): value for (round, tag), value in found.items() if tag.split("/")[-1] not in ("round", "seed")}


def open_trackers(directory: Path, names=("tensorboard",)) -> trackers.Trackers:
    return trackers.Trackers(names, trackers.TrackedRun(directory, SETTINGS, [0, 1], start_time=1000.0))


@pytest.fixture
def command(tmp_path):
    (tmp_path / "config.py").write_text(CONFIG)
    return [f"--config={tmp_path / 'config.py'}", f"--workdir={tmp_path / 'run'}"]


@pytest.fixture
def log(tmp_path):
    log = MetricLines(tmp_path / "metrics.jsonl")
    log.add([line(2, 0, 1.5), line(2, 1, 1.25)])
    return log


# ---- TensorBoard -----------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_tensorboard_shows_the_files_of_a_run_even_if_enabled_after_a_kill(command, tmp_path, capsys, monkeypatch):
    """The run is killed between the lines of round 4 and its checkpoint: they are dropped and written again."""
    run, save = tmp_path / "run", engine.Checkpoints.save

    def killed(self, round, state):
        if round == 4:
            raise KeyboardInterrupt
        save(self, round, state)

    with monkeypatch.context() as patch:
        patch.setattr(engine.Checkpoints, "save", killed)
        assert train.main(command) == 130
    assert [line["round"] for line in MetricLines(run / "metrics.jsonl").read()] == [2, 2, 4, 4]
    assert not (run / "tensorboard").exists()
    assert train.main([*command, "--config.live=tensorboard"]) == 0
    assert str(run / "tensorboard") in capsys.readouterr().out
    assert {path.name for path in run.iterdir()} == {*WRITTEN, "diagnostics.jsonl", "tensorboard"}
    assert [path.name for path in sorted((run / "tensorboard").iterdir())] == ["seed_3", "seed_4"]
    for seed in (3, 4):
        shown = curves(run / "tensorboard" / f"seed_{seed}")
        assert shown == expected(run, seed)
        assert {round for round, tag in shown if tag == "test/accuracy"} == {2, 4, 6}
        assert {round for round, tag in shown if tag == "diagnostics/drift/gamma"} == {0, 3}


def test_event_files_are_rewritten_when_a_run_resumes(log, tmp_path):
    """The killed process does not close its file; an open TensorBoard drops the events it has read of it."""
    killed = open_trackers(tmp_path)
    log.add([line(4, 0, 1.0), line(4, 1, 1.0)])
    killed.catch_up(pytest.fail)
    for file in (tmp_path / "tensorboard").glob("*/*"):
        file.rename(file.with_name("events.out.tfevents.1000000000.there"))  # as if it were of another second
    log.rewind(2)
    with open_trackers(tmp_path) as again:
        again.catch_up(pytest.fail)
        log.add([line(4, 0, 0.5), line(4, 1, 0.75)])
        again.catch_up(pytest.fail)
        for seed in (0, 1):
            assert curves(tmp_path / "tensorboard" / f"seed_{seed}") == expected(tmp_path, seed)
    first = events(tmp_path / "tensorboard" / "seed_0")[1]
    assert (first.step, first.session_log.status) == (0, SessionLog.START)


def test_event_times_exclude_interruptions_and_nonfinite_figures_are_gaps(log, tmp_path):
    log.add([line(4, 0, None), line(4, 1, 1.0)])
    with open_trackers(tmp_path) as shown:
        shown.catch_up(pytest.fail)
    folder = tmp_path / "tensorboard" / "seed_0"
    times = {event.step: event.wall_time for event in events(folder) if event.step}
    assert times == {2: 1001.0, 4: 1002.0}
    assert (2, "train/loss") in curves(folder) and (4, "train/loss") not in curves(folder)


def hyperparameters(folder: Path) -> Iterator[HParamsPluginData]:
    for event in events(folder):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                yield HParamsPluginData.FromString(value.metadata.plugin_data.content)


@pytest.mark.parametrize("is_complete", [True, False])
def test_hyperparameters_hold_the_config_and_completion(tmp_path, is_complete):
    open_trackers(tmp_path).close(is_complete)
    begins, *ends = hyperparameters(tmp_path / "tensorboard" / "seed_1")
    found = begins.session_start_info.hparams
    assert (found["algorithm.name"].string_value, found["algorithm.mu"].number_value) == ("fedprox", 0.1)
    assert found["seed"].number_value == 1 and "data.path" in found
    assert bool(ends) == is_complete


# ---- Weights & Biases ------------------------------------------------------------------------------------------------
def history(file: Path) -> dict[tuple[int, str], float]:
    """{(step, figure): value} of a local W&B file: after 7 bytes LevelDB's log of records, in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, record, found = file.read_bytes(), 7, b"", {}
    while place + 7 <= len(data):
        if (left := 2**15 - place % 2**15) < 7:
            place += left
            continue
        size, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record, place = record + data[place + 7 : place + 7 + size], place + 7 + size
        if kind in (1, 4):  # whole, or the last part
            row, record = Record.FromString(record).history, b""
            found |= {
                (row.step.num, "/".join(item.nested_key) or item.key): json.loads(item.value_json) for item in row.item
            }
    return {key: value for key, value in found.items() if not key[1].startswith("_")}


def test_offline_files_of_weights_and_biases_hold_the_whole_run(log, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason='Weights & Biases is not installed: pip install -e ".[wandb]"')
    for name, value in {"MODE": "offline", "SILENT": "true", "CACHE_DIR": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    with pytest.raises(KeyboardInterrupt), open_trackers(tmp_path, ["wandb"]) as killed:
        log.add([line(4, 0, 1.0), line(4, 1, 1.0)])
        killed.catch_up(pytest.fail)
        raise KeyboardInterrupt
    ids = json.loads((tmp_path / "wandb_ids.json").read_text())
    log.rewind(2)
    with open_trackers(tmp_path, ["wandb"]) as again:
        again.catch_up(pytest.fail)
        log.add([line(4, 0, 0.5), line(4, 1, 0.75)])
        again.catch_up(pytest.fail)
    wandb.teardown()  # its service closes a file some time after the run's end
    assert json.loads((tmp_path / "wandb_ids.json").read_text()) == ids and sorted(ids) == ["0", "1"]
    for seed, id in ids.items():
        (file,) = (tmp_path / "wandb").glob(f"offline-run-*/run-{id}.wandb")
        assert history(file) == expected(tmp_path, int(seed)) and len(history(file)) == 4


# ---- what goes wrong -------------------------------------------------------------------------------------------------
def test_the_error_for_a_missing_package_names_the_extra(command, tmp_path, capsys, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else found(name))
    assert train.main([*command, "--config.live=tensorboard, wandb"]) == 2
    streams = capsys.readouterr()
    assert 'wandb needs wandb, which is not installed. Install it: pip install "fedjax-het[wandb]"' in streams.err
    assert "compil" not in streams.out and not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused_with_the_nearest(command, capsys):
    assert train.main([*command, "--config.live=tensorbord"]) == 2
    assert "config.live: 'tensorbord' is unknown. Did you mean 'tensorboard'?" in capsys.readouterr().err


@pytest.fixture
def failing_tracker(monkeypatch):
    """A writer whose `write` is set by the test."""
    writer = SimpleNamespace(write=lambda *_: None, close=lambda is_complete: None)
    module = SimpleNamespace(open=lambda run: writer)
    monkeypatch.setitem(sys.modules, "fedjax_het.cli.trackers.broken", module)
    entries = {"tensorboard": trackers.WRITERS["tensorboard"], "broken": trackers.Tracker("broken", "json", "broken")}
    monkeypatch.setattr(trackers, "WRITERS", MappingProxyType(entries))
    return SimpleNamespace(writer=writer, module=module)


def raise_network_error(*_):
    raise OSError("no network")


def test_a_failing_writer_is_reported_once_and_the_others_continue(log, tmp_path, failing_tracker):
    warnings = []
    with open_trackers(tmp_path, ["broken", "tensorboard"]) as shown:
        shown.catch_up(pytest.fail)
        failing_tracker.writer.write = raise_network_error
        for round in (4, 6):
            log.add([line(round, 0, 1.0), line(round, 1, 1.0)])
            shown.catch_up(warnings.append)
    assert warnings == ["broken failed and is not used again (OSError: no network); the run continues"]
    assert curves(tmp_path / "tensorboard" / "seed_0") == expected(tmp_path, 0)


@pytest.mark.extended
def test_a_writer_that_fails_to_close_loses_no_result(command, tmp_path, failing_tracker, capsys):
    failing_tracker.writer.close = raise_network_error
    assert train.main([*command, "--config.live=broken", "--config.diagnostics=", "--config.diagnose_every=10"]) == 0
    assert "warning: broken failed" in capsys.readouterr().out and (tmp_path / "run" / "summary.json").exists()


@pytest.mark.extended
def test_a_writer_that_fails_to_start_ends_the_run_before_its_first_round(command, tmp_path, failing_tracker, capsys):
    failing_tracker.module.open = raise_network_error
    assert train.main([*command, "--config.live=broken", "--config.diagnostics=", "--config.diagnose_every=10"]) == 2
    assert "config.live: broken did not start (no network). Fix it, or leave broken out." in capsys.readouterr().err
    assert MetricLines(tmp_path / "run" / "metrics.jsonl").read() == []
    with pytest.raises(InputError):
        open_trackers(tmp_path, ["tensorboard", "broken"])


@pytest.mark.parametrize(("index", "is_there"), [(0, True), (1, False)])
def test_only_the_first_process_writes(tmp_path, index, is_there):
    settings = SETTINGS | {"live": "tensorboard"}
    record = SimpleNamespace(
        _processes=Processes(index, 2), settings=settings, seeds=[0], directory=SimpleNamespace(path=tmp_path)
    )
    RunRecorder.start_trackers(record, seconds=0.0).close(is_complete=True)
    assert (tmp_path / "tensorboard").exists() == is_there
