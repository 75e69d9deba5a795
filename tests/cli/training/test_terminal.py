"""Terminal output of a run."""

import io
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedjax_het.cli.training import terminal
from fedjax_het.engine.parallel.compilation import COMPILATION_LOG


def render(figures):
    summary = {"rounds": 3, "final": {name: {"mean": 0.25, "std": None} for name in figures}}
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(terminal.tabulate_results(summary))
    return console.export_text()


def test_few_figures_are_all_printed():
    text = render(["train/loss", "clients/accuracy_min"])
    assert "after round 3" in text and "clients/accuracy_min" in text and "summary.json" not in text


@pytest.mark.parametrize(
    ("places", "mean", "text"), [(10, 10.0, "10 per round"), (24, 10.0, "10 per round on average, and at most 24")]
)
def test_places_of_a_cohort_are_not_taken_for_clients(places, mean, text):
    facts = SimpleNamespace(cohort_size=places, mean_cohort_size=mean)
    assert terminal.describe_cohort(facts, {}) == text


def test_with_many_figures_details_are_left_out_with_a_reference():
    endings = ("mean", "weighted", "std", "worst10", "min", "max")
    names = [f"clients/{score}_{end}" for score in ("accuracy", "dice", "dice_foreground", "iou") for end in endings]
    text = render([*names, *(f"unseen/{domain}/{score}" for domain in "abcdefghij" for score in ("dice", "iou"))])
    for name in ("clients/dice_mean", "clients/dice_foreground_worst10", "unseen/j/dice"):
        assert name in text
    for name in ("clients/dice_max", "clients/iou_mean", "unseen/j/iou"):
        assert name not in text
    assert "all 44 figures: summary.json" in text


def test_the_program_that_is_compiled_is_printed_again_while_it_takes_long(capsys):
    with terminal.show_compilation(interval=0.05):
        COMPILATION_LOG.info("compiling rounds, %s", "vmapped")
        time.sleep(0.2)
        COMPILATION_LOG.info("compiling evaluation, vmapped")
    assert not COMPILATION_LOG.handlers and COMPILATION_LOG.propagate
    lines = capsys.readouterr().out.splitlines()
    first = [line for line in lines if not line.endswith(" s")]
    assert first == ["compiling rounds, vmapped ...", "compiling evaluation, vmapped ..."] and lines[0] == first[0]
    assert "compiling rounds, vmapped ... 0 s" in lines
    assert lines[-1].startswith("compiling evaluation, vmapped ...")


def test_rounds_of_several_runs_are_shown_with_the_time_left(capsys, monkeypatch):
    now = iter([100.0, 110.0, 131.0, 140.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(now))
    with terminal.show_progress(0, 400, interval=30) as progress:
        progress.show(50, "too early")
        progress.show(100, "fedavg: round 20/80")
        progress.show(120, "too early again")
    assert capsys.readouterr().out == "round 100/400  fedavg: round 20/80, 0:01:33 left\n"


def test_a_line_of_a_round_has_the_time_left(capsys, monkeypatch):
    now = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(now))
    with terminal.show_progress(10, 30) as progress:
        progress.show(20, terminal.describe_round({"train/loss": 0.5}, 1.0))
        progress.show(30, "")
    first, last = capsys.readouterr().out.splitlines()
    assert first == "round 20/30  train/loss 0.5000  1.000 s per round, 0:00:10 left" and "left" not in last
