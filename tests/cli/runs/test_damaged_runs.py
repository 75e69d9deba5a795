"""Damaged run directories: one line names the file, the damage and the fix; intact files are kept."""

import json
import re
import shutil

import pytest

from fedjax_het.cli import train
from fedjax_het.cli.runs import json_files
from fedjax_het.cli.training import recorder

pytestmark = pytest.mark.extended

FILE = """
def get_config():
    return dict(
        algorithm=dict(name="fedavg", batch_size=20),
        model=dict(name="mlp", hidden=()),
        data=dict(name="digits", num_clients=3, partition=dict(name="iid")),
        rounds=4, num_seeds=2, evaluate_every=1, checkpoint_every=1, layout="vmapped",
        diagnostics="norms", diagnose_every=2,
    )
"""
CONFIG, RESOLVED, PARTITION, SUMMARY = (f"{name}.json" for name in ("config", "resolved", "partition", "summary"))
METRICS, DIAGNOSTICS, CLIENTS = "metrics.jsonl", "diagnostics.jsonl", "per_client.csv"
PUT_BACK = "Put it back, or delete the folder '.*/run': the command of the run trains it again."
DELETE = "Delete it: the command of the run writes it again."


@pytest.fixture(scope="module")
def finished(config, compiled_once, tmp_path_factory):
    """The directory of a complete run."""
    workdir = tmp_path_factory.mktemp("runs") / "whole"
    assert train.main([f"--config={config}", f"--workdir={workdir}"]) == 0
    return workdir


@pytest.fixture
def workdir(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def command(config, workdir):
    return [f"--config={config}", f"--workdir={workdir}"]


def contents(directory):
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def lines(directory, name=METRICS):
    found = [json.loads(line) for line in (directory / name).read_text().splitlines()]
    return [line | {"seconds": None} for line in found]


# ---- what damages ----------------------------------------------------------------------------------------------------
def write(name, text):
    return lambda run: (run / name).write_text(text)


def delete(*names):
    def remove(run):
        for name in names:
            shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()

    return remove


def replace_by_folder(name):
    return chain(delete(name), lambda run: (run / name).mkdir())


def edit_line(number, change, name=METRICS):
    def spoil(run):
        all_lines = (run / name).read_text().splitlines(keepends=True)
        all_lines[number - 1] = change(all_lines[number - 1])
        (run / name).write_text("".join(all_lines))

    return spoil


def chain(*damages):
    def spoil(run):
        for damage in damages:
            damage(run)

    return spoil


def set_key(**values):
    return lambda line: json.dumps(json.loads(line) | values) + "\n"


def flip_bit(pattern):
    """Flip one bit of the largest matching file."""

    def spoil(run):
        path = max(run.glob(pattern), key=lambda path: path.stat().st_size)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))

    return spoil


def halve(line):
    return line[: len(line) // 2] + "\n"


STOPPED, NO_CHECKPOINTS = delete(SUMMARY), delete("checkpoints")
REFUSED = {
    # of a complete run
    "config gone, no checkpoint": (chain(delete(CONFIG), NO_CHECKPOINTS), "config.json: it is gone, but metrics.jsonl"),
    "summary is a folder": (replace_by_folder(SUMMARY), f"summary.json: it cannot be read .*directory.*{DELETE}"),
    "clients without a column": (write(CLIENTS, "a,b\n1,2\n"), f"no column 'seed' in it. {DELETE}"),
    "clients of other columns": (write(CLIENTS, "seed,client,is_newcomer,loss\n0,a,False\n"), "row 2 does not have"),
    "clients with text": (write(CLIENTS, "seed,client,is_newcomer,loss\n0,a,False,x\n"), "could not convert .*'x'"),
    "resolved of another type": (write(RESOLVED, "3"), f"resolved.json: there is no 'layout' in it. {DELETE}"),
    "line torn in the middle": (edit_line(7, halve), f"metrics.jsonl, line 7: not JSON .*{PUT_BACK}"),
    "metrics emptied": (write(METRICS, ""), f"no line for round 1 of seed 0. {PUT_BACK}"),
    "metrics garbled": (lambda run: (run / METRICS).write_bytes(b"\xff\xfe\n"), "metrics.jsonl: not JSON"),
    "a line of nested lists": (edit_line(2, lambda _: "[" * 100_000 + "\n"), "metrics.jsonl, line 2: not JSON"),
    # of one that was stopped
    "checkpoints is a file": (
        chain(STOPPED, NO_CHECKPOINTS, write("checkpoints", "")),
        "checkpoints: it is not a folder",
    ),
    "first line torn": (chain(STOPPED, edit_line(1, halve)), f"line 1: not JSON .*{PUT_BACK}"),
    "line of another type": (chain(STOPPED, edit_line(8, lambda _: "[]\n")), "line 8: there is no 'round' in it"),
    "blank line": (chain(STOPPED, edit_line(2, lambda line: line + "\n")), "line 3: not JSON"),
    "round as text": (chain(STOPPED, edit_line(2, set_key(round="2"))), "line 2: 'round' or 'seed' is not an integer"),
    "figure as text": (chain(STOPPED, edit_line(2, set_key(**{"test/loss": "x"}))), "'test/loss' is not a number"),
    "another figure": (chain(STOPPED, edit_line(2, set_key(x=1))), "line 2: 'x' is in this line or in the first"),
    "line twice": (
        chain(STOPPED, edit_line(2, lambda line: 2 * line)),
        "line 3: round 1 of seed 1 is there a second",
    ),
    "another seed": (chain(STOPPED, edit_line(2, set_key(seed=7))), "metrics.jsonl: round 1 of seed 7 does not belong"),
    "line gone": (chain(STOPPED, edit_line(3, lambda _: "")), "no line for round 2 of seed 0"),
    "diagnostics torn": (chain(STOPPED, edit_line(1, halve, DIAGNOSTICS)), "diagnostics.jsonl, line 1: not JSON"),
    "diagnostics gone": (
        chain(STOPPED, delete(DIAGNOSTICS)),
        "diagnostics.jsonl: there is no line for round 0 of seed 0",
    ),
    "stray empty checkpoint": (
        chain(STOPPED, lambda run: (run / "checkpoints" / "7").mkdir()),
        "checkpoints/7: the checkpoint is damaged: 'state' is missing. Delete it: the run resumes from checkpoint 4.",
    ),
    "stray file": (chain(STOPPED, write("checkpoints/9", "")), "checkpoints/9: .*it is not a folder. Delete it: "),
    "checkpoint under another name": (
        chain(STOPPED, lambda run: shutil.copytree(run / "checkpoints/4", run / "checkpoints/5")),
        "checkpoints/5: .*it is the checkpoint of round 4 under another name",
    ),
    "about emptied": (chain(STOPPED, write("checkpoints/4/about/metadata", "")), "checkpoints/4: .*'about' cannot be"),
    "about of another type": (chain(STOPPED, write("checkpoints/4/about/metadata", "[]")), "'about' cannot be read"),
    "a file of the state gone": (
        chain(STOPPED, delete("checkpoints/4/state/manifest.ocdbt")),
        "checkpoints/4: .*state/manifest.ocdbt is missing. Delete it: the run resumes from checkpoint 3.",
    ),
    "one bit of an array": (
        chain(STOPPED, flip_bit("checkpoints/4/state/ocdbt.process_0/d/*")),
        "checkpoints/4: .*the checksum of .* does not match. Delete it",
    ),
    "the only checkpoint": (
        chain(STOPPED, delete("checkpoints/3", "checkpoints/4/state")),
        "checkpoints/4: .*'state' is missing. Delete it: the run starts again.",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "message"), REFUSED.values(), ids=REFUSED)
def test_a_damaged_run_is_refused_with_one_message_and_left_unchanged(workdir, command, capsys, damage, message):
    damage(workdir)
    before = contents(workdir)
    assert train.main(command) == 2
    streams = capsys.readouterr()
    assert streams.err.startswith("error: --workdir: ") and streams.err.count("\n") == 1
    assert "compil" not in streams.out
    assert contents(workdir) == before

    assert re.search(message, streams.err), streams.err


# ---- what is written again -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [CONFIG, PARTITION, SUMMARY, CLIENTS])
def test_deleting_a_damaged_file_as_advised_gives_the_same_results(finished, workdir, command, capsys, name):
    (workdir / name).write_text("")
    assert train.main(command) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --workdir: {workdir / name}: ") and DELETE in said
    delete(name)(workdir)
    assert train.main(command) == 0
    assert lines(workdir) == lines(finished)
    assert json.loads((workdir / SUMMARY).read_text())["final"] == json.loads((finished / SUMMARY).read_text())["final"]
    for file in (CONFIG, PARTITION, CLIENTS):
        assert (workdir / file).read_bytes() == (finished / file).read_bytes()


def test_another_config_is_refused_even_if_config_json_is_gone(workdir, command, capsys):
    delete(CONFIG)(workdir)
    assert train.main([*command, "--config.algorithm.batch_size=10"]) == 2
    assert "config.algorithm.batch_size: 20 / 10" in capsys.readouterr().err


def test_checkpoints_of_another_run_are_refused_before_compiling(workdir, command, capsys):
    STOPPED(workdir)
    path = workdir / "checkpoints/4/about/metadata"
    path.write_text(path.read_text().replace('"batch_size": 20', '"batch_size": 30'))
    delete("checkpoints/4/checksums.json")(workdir)
    assert train.main(command) == 2
    streams = capsys.readouterr()
    assert "config.algorithm.batch_size: 30 / 20" in streams.err and "compil" not in streams.out


def test_a_complete_run_needs_no_checkpoint(workdir, command, capsys):
    NO_CHECKPOINTS(workdir)
    before = contents(workdir)
    assert train.main(command) == 0
    assert "test/accuracy" in capsys.readouterr().out and contents(workdir) == before


# ---- the advice that messages give -----------------------------------------------------------------------------------
def test_a_torn_last_line_is_repaired_on_resumption(finished, workdir, command):
    delete(SUMMARY, "checkpoints/4")(workdir)
    whole = (workdir / METRICS).read_text().splitlines(keepends=True)
    (workdir / METRICS).write_text("".join(whole[:6]) + whole[6][:20])
    assert train.main(command) == 0
    assert lines(workdir) == lines(finished)


@pytest.mark.parametrize("lost", ["checkpoints/4", "checkpoints"])
def test_rounds_after_the_last_checkpoint_are_trained_again(finished, workdir, command, lost):
    chain(STOPPED, delete(lost))(workdir)
    assert train.main(command) == 0
    assert lines(workdir) == lines(finished) and lines(workdir, DIAGNOSTICS) == lines(finished, DIAGNOSTICS)


def test_a_missing_resolved_json_is_determined_again_with_a_note(workdir, command, capsys):
    delete(SUMMARY, RESOLVED)(workdir)
    assert train.main(command) == 0
    assert "resolved.json is gone: the values of 'auto' are determined again" in capsys.readouterr().out
    assert json_files.to_json(json.loads((workdir / RESOLVED).read_text()))


def test_unknown_entries_beside_checkpoints_are_left_alone(workdir, command):
    STOPPED(workdir)
    (workdir / "checkpoints" / "notes.txt").write_text("mine")
    (workdir / "checkpoints" / ".DS_Store").write_text("")
    shutil.copytree(workdir / "checkpoints/4", workdir / "checkpoints/5.orbax-checkpoint-tmp-3")  # of a killed run
    assert train.main(command) == 0
    assert (workdir / "checkpoints" / "notes.txt").read_text() == "mine"


# ---- pictures --------------------------------------------------------------------------------------------------------
def test_a_failed_plot_loses_no_result_and_is_drawn_later(finished, workdir, command, capsys, monkeypatch):
    delete(SUMMARY, CLIENTS)(workdir)

    def fail(*_):
        assert (workdir / SUMMARY).exists() and (workdir / CLIENTS).exists()
        raise ValueError("no such\nformula")

    with monkeypatch.context() as patch:
        patch.setattr(recorder, "learning_curves", fail)
        assert train.main(command) == 0
    out = capsys.readouterr().out
    assert f"warning: {workdir / 'curves.png'} could not be drawn (ValueError: no such); no result depends on it" in out
    assert f"  {workdir / 'partition.png'}" in out and f"  {workdir / 'curves.png'}" not in out
    assert (workdir / CLIENTS).read_bytes() == (finished / CLIENTS).read_bytes()
    assert not [path.name for path in workdir.iterdir() if path.name.startswith((".partial", "curves"))]
    assert train.main(command) == 0
    assert (workdir / "curves.png").read_bytes() == (finished / "curves.png").read_bytes()
