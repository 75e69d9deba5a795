"""The GPU benchmark without a GPU: its file of figures, and its errors."""

import itertools
import json
import sys
import time

import pytest

from experiments.benchmarks.gpu import __main__ as gpu
from experiments.benchmarks.gpu import parts, tasks
from tests.shared import ROOT

ABOUT = {"device": "a card", "versions": {}}


# ---- the file and the pieces -----------------------------------------------------------------------------------------
def make_piece(*names, said=(), error="", seconds=1.0):
    """Says these records, then ends badly where there is an error; remembers what it was asked."""
    asked = []

    def run(wanted, limit):
        asked.append(wanted)
        yield from said
        if error:
            raise parts.TaskFailedError(error, is_late=False)

    return parts.Piece("variants", list(names), seconds, run), asked


def test_recorded_figures_are_not_measured_again_and_failures_are_recorded(tmp_path):
    path = tmp_path / "gpu.json"
    file = gpu.FigureFile(path)
    file.describe(ABOUT)
    broken, asked = make_piece("a", "b", said=[{"name": "a", "median_s": 0.5}], error="out of luck")
    assert gpu.measure(file, [broken], time.monotonic() + 60) == [] and asked == [["a", "b"]]

    again = gpu.FigureFile(path)
    assert again.records == [
        {"part": "variants", "name": "a", "median_s": 0.5},
        {"part": "variants", "name": "b", "error": "out of luck"},
    ]
    more, asked = make_piece("a", "b", "c", said=[{"name": "c"}])
    assert gpu.measure(again, [more, broken], time.monotonic() + 60) == [] and asked == [["c"]]


def test_pieces_without_enough_time_are_left_and_not_recorded_as_failed(tmp_path):
    file = gpu.FigureFile(tmp_path / "gpu.json")
    long, asked = make_piece("a", said=[{"name": "a"}], seconds=1000.0)
    assert gpu.measure(file, [long], time.monotonic() + 60) == ["a"] and not asked and not file.records


def test_a_file_of_another_device_is_refused(tmp_path, capsys):
    file = gpu.FigureFile(tmp_path / "gpu.json")
    file.describe(ABOUT)
    with pytest.raises(ValueError, match="measured on 'a card', and this is 'another'"):
        gpu.FigureFile(tmp_path / "gpu.json").describe({"device": "another"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts=variant"], "--parts: 'variant' is unknown. Did you mean 'variants'?"),
        (["--minutes=0"], "--minutes: must be more than 0"),
        (["--layout=all"], "layout cannot be read"),
        (["--json=/nowhere/at/all.json"], "--json: cannot write"),
        (["--json=other.json"], "not written by this command"),
    ],
)
def test_input_errors_exit_with_status_2_and_write_no_file(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.json").write_text("[]")
    assert gpu.main(["--json=figures.json", *arguments]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "figures.json").exists()


def test_show_prints_a_file_as_tables(tmp_path, capsys):
    file = gpu.FigureFile(tmp_path / "gpu.json")
    file.describe(ABOUT)
    file.add("variants", {"name": "a", "median_s": 0.012344, "kernels": [1]})
    file.add("tests", {"name": "laws", "passed": 3, "failed": 1})
    assert gpu.main([f"--json={tmp_path / 'gpu.json'}", "--show"]) == 1
    printed = capsys.readouterr().out
    assert "| name | median_s |\n| --- | --- |\n| a | 0.01234 |" in printed and "failed:\n  laws" in printed


def test_names_of_pieces_are_unique():
    plan = parts.Plan("cuda", False, "", "auto")
    for name, part in parts.PARTS.items():
        names = [each for piece in part(plan) for each in piece.names]
        assert names and len(set(names)) == len(names), name


def test_the_tests_to_be_run_exist():
    for test in (parts._RESUME, *itertools.chain(*parts._TESTS.values())):
        path, _, name = test.partition("::")
        assert (ROOT / path).exists(), test
        assert not name or f"def {name}(" in (ROOT / path).read_text(), test


# ---- processes -------------------------------------------------------------------------------------------------------
def test_a_process_that_takes_too_long_is_ended_and_its_output_kept():
    command = [sys.executable, "-c", "import time; print('one'); time.sleep(60)"]
    lines = parts.read_lines(command, 5.0)
    assert next(lines) == "one\n"
    with pytest.raises(parts.TaskFailedError, match="took more than 5 s"):
        next(lines)


def test_the_device_is_described_by_a_task_that_there_is(tmp_path, monkeypatch):
    commands = []
    for name in ("JAX_PLATFORMS", "XLA_PYTHON_CLIENT_PREALLOCATE"):
        monkeypatch.setenv(name, "")  # restored after the command has set it
    monkeypatch.setattr(parts, "read_lines", lambda command, *_: commands.append(command) or [json.dumps(ABOUT)])
    assert gpu.main([f"--json={tmp_path / 'gpu.json'}", "--platform=cpu", "--tiny", "--minutes=1e-9"]) == 1
    (command,) = commands
    assert command[3] in tasks.TASKS and gpu.FigureFile(tmp_path / "gpu.json").about == ABOUT


def test_the_error_of_a_failed_process_holds_its_last_output():
    with pytest.raises(parts.TaskFailedError, match="out of luck"):
        list(parts.read_lines([sys.executable, "-c", "raise SystemExit('out of luck')"], 60.0))


def test_kernel_times_are_summed_and_idle_time_is_excluded():
    named = lambda kind, value, **ids: {"ph": "M", "name": kind, "args": {"name": value}, **ids}  # noqa: E731
    kernel = lambda name, ts, dur, tid=7: {"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid}  # noqa: E731
    events = [
        named("process_name", "/device:GPU:0", pid=1),
        named("thread_name", "Stream #13(Compute)", pid=1, tid=7),
        named("thread_name", "XLA Ops", pid=1, tid=8),
        *(kernel("gemm", 0.0, 1000.0), kernel("gemm", 3000.0, 1000.0), kernel("copy", 3500.0, 1000.0)),
        kernel("the same, told again", 0.0, 1000.0, tid=8),
    ]
    found = tasks.summarize_kernels(json.loads(json.dumps(events)), 1)
    assert found == {
        "span_ms": 4.5,
        "busy_ms": 2.5,
        "launches": 3,
        "kernels": [{"name": "gemm", "ms": 2.0, "times": 2}],
    }
