"""Training in several processes, its end and its resumption, also on other numbers of devices."""

import shutil
import signal
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from fedjax_het.cli import train
from fedjax_het.cli.configuration import build
from fedjax_het.cli.distributed import layouts
from fedjax_het.cli.distributed.collectives import Processes
from fedjax_het.cli.runs.records import MetricLines
from fedjax_het.cli.training.recorder import WRITTEN
from fedjax_het.errors import InputError
from tests.cli.distributed.launcher import (
    start_together,
    train_arguments,
    train_together,
    wait_for_all,
    write_inputs,
)
from tests.cli.training.test_resume import final_state, lines

ROUNDING = 1e-5


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return write_inputs(tmp_path_factory.mktemp("processes"))


def kill_one(place: Path, count: int, own_arguments: list[str], workdir: Path, victim: int, round: int) -> None:
    """Kill one process after that round; the others end by themselves and give the reason."""
    processes, log = start_together(place, count, own_arguments), MetricLines(workdir / "metrics.jsonl")
    while all(p.poll() is None for p in processes) and not any(line["round"] >= round for line in log.read()):
        time.sleep(0.01)
    processes[victim].send_signal(signal.SIGKILL)
    begun, done = time.monotonic(), wait_for_all(processes)
    assert time.monotonic() - begun < 60
    assert done.pop(victim)[0] == -signal.SIGKILL
    for status, _, errors in done:
        last = errors.splitlines()[-1]
        assert status == 1 and "another process was lost" in last and "the same command resumes" in last, errors
        assert victim == 0 or f"stopped sending heartbeats):\n{victim}" in errors
    assert not (workdir / "summary.json").exists()


def train_in_this_process(own_arguments: list[str]) -> None:
    """In this process, which has four devices."""
    assert jax.device_count() == 4
    assert train.main(own_arguments) == 0


def final_state_without_padding(workdir: Path) -> dict[str, np.ndarray]:
    """The last checkpoint without the rows behind the five clients, which differ with the devices."""
    leaves = final_state(workdir).items()
    return {path: leaf[:, :5] if path.startswith("['clients']") else leaf for path, leaf in leaves}


def check_same(a: Path, b: Path, tolerance: float) -> None:
    """Equal states, metrics and figures of every client; tolerance 0 is to the bit."""
    states = final_state_without_padding(a), final_state_without_padding(b)
    assert states[0].keys() == states[1].keys() and states[0]
    for path, leaf in states[0].items():
        np.testing.assert_allclose(states[1][path], leaf, rtol=tolerance, atol=tolerance, err_msg=path)
    for line, expected in zip(lines(a), lines(b), strict=True):
        assert line.keys() == expected.keys()
        numbers = line.keys() - {"seconds"}
        assert all(line[key] == pytest.approx(expected[key], rel=tolerance, abs=tolerance) for key in numbers)
    if not tolerance:
        assert (a / "per_client.csv").read_bytes() == (b / "per_client.csv").read_bytes()


# ---- training --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_two_processes_equal_one_and_resume_after_a_kill_on_other_devices(place, tmp_path):
    scaffold = {"algorithm.name": "scaffold"}
    two, four, single = (tmp_path / name for name in ("two", "four", "one"))
    kill_one(place, 2, train_arguments(place, two, scaffold), two, victim=0, round=4)
    shutil.copytree(two, four)
    (_, printed, _), (_, silent, _) = train_together(place, 2, train_arguments(place, two, scaffold))
    assert "test/accuracy" in printed and "round " not in silent
    assert sorted(path.name for path in two.iterdir()) == sorted(WRITTEN)
    train_in_this_process(train_arguments(place, single, scaffold | {"layout": "sharded(2)"}))
    check_same(single, two, ROUNDING)
    train_in_this_process(train_arguments(place, four, scaffold | {"layout": "sharded(4)"}))
    check_same(single, four, ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedld"])
@pytest.mark.parametrize("count", [2, 4])
def test_runs_killed_at_several_rounds_resume_bit_for_bit(place, tmp_path, name, count):
    overrides = {"algorithm.name": name, "rounds": "60", "layout": f"sharded({count})"}
    whole, broken, single = (tmp_path / folder for folder in ("whole", "broken", "one"))
    train_together(place, count, train_arguments(place, whole, overrides))
    for victim, round in ((0, 4), (count - 1, 20), (1, 32)):
        kill_one(place, count, train_arguments(place, broken, overrides), broken, victim, round)
    shutil.copytree(broken, single)
    train_together(place, count, train_arguments(place, broken, overrides))
    check_same(whole, broken, 0)
    train_in_this_process(train_arguments(place, single, overrides | {"layout": "vmapped"}))
    check_same(whole, single, ROUNDING)


# ---- what they decide ------------------------------------------------------------------------------------------------
class FixedReplies(Processes):
    """The first of several simulated processes, whose messages are given."""

    def __init__(self, *said: object):
        super().__init__(0, len(said))
        self._said = said

    def all_gather(self, name: str, value: object) -> list:
        return list(self._said)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([["a", [0, 1, 2, 3, 4, 5, 6, 7]]] * 2, 4),  # one host: half each
        ([["a", [0, 1, 2]], ["a", [3, 4, 5]]], 3),  # one host, cores assigned
        ([["a", [0, 1, 2]], ["b", [0, 1, 2]]], 3),  # two hosts
        ([["a", [0, 1, 2, 3]], ["b", [0, 1]]], 2),  # all have as many devices
        ([["a", [0, 1]]] * 4, 1),
    ],
)
def test_cores_are_divided_among_the_processes_of_a_host(places, expected):
    assert layouts.cores_per_process(FixedReplies(*places)) == expected


def test_all_processes_use_im2col_if_one_has_no_native_kernels():
    assert build._choose_conv_impl("float32", FixedReplies("native", "im2col")) == "im2col"
    assert build._choose_conv_impl("float32", FixedReplies("native", "native")) == "native"


@pytest.mark.parametrize("layout", ["vmapped", "chunked(2)"])
def test_layouts_for_one_device_are_refused_with_several_processes(layout):
    with pytest.raises(InputError, match="for one device, and 2 processes have more"):
        layouts.read_layout(layout, Processes(0, 2))
