"""Grids of settings."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from fedjax_het.cli import compare
from fedjax_het.cli.configuration import build_data
from fedjax_het.cli.configuration.config_files import Config, find_config
from fedjax_het.cli.sweep import grid, training
from fedjax_het.cli.sweep.grid import GridRun
from fedjax_het.errors import InputError

QUICK = find_config("quickstart")
CONFIG = """
def get_config():
    return dict({"algorithm": {"name": "fedavg", "batch_size": 8}, "data": {"name": "digits", "num_clients": 2,
        "partition": {"name": "iid"}}, "rounds": 1, "layout": "vmapped"})
"""


def test_a_grid_has_every_config_with_every_combination():
    found = grid.make_grid([QUICK], {"rounds": "2"}, {"algorithm.lam": ["0", "0.1"], "seed": ["0", "1", "2"]})
    assert len(found) == 6
    assert found[1].name == "quickstart,lam=0,seed=1" and grid.label_runs(found)[1] == "quickstart lam=0"
    assert found[5].settings()["algorithm"]["lam"] == 0.1
    assert {cell.settings()["rounds"] for cell in found} == {2}


def test_domains_left_out_and_seeds_share_a_row():
    cell = GridRun(QUICK, {}, {"data.unseen": "art painting", "seed": "1"})
    assert grid.label_runs([cell]) == ["quickstart"]
    assert cell.name == "quickstart,unseen=art_painting,seed=1"


def test_a_row_is_labeled_by_its_algorithm():
    names = {"algorithm.name": ["fedavg", "fedbn"]}
    assert grid.label_runs(grid.make_grid([QUICK], {}, names)) == ["FedAvg", "FedBN"]
    several = grid.make_grid([QUICK, Config(Path("slow.py"))], {}, names | {"algorithm.lam": ["0"]})
    assert grid.label_runs(several)[::3] == ["quickstart FedAvg lam=0", "slow FedBN lam=0"]


def test_a_nested_table_is_labeled_by_its_own_name():
    cell = GridRun(QUICK, {}, {"data.partition.name": "iid", "algorithm.learning_rate_schedule.name": "cosine"})
    assert cell.name == "quickstart,partition=iid,learning_rate_schedule=cosine"
    assert grid.label_runs([cell]) == ["quickstart partition=iid learning_rate_schedule=cosine"]


def test_runs_of_the_same_name_are_refused():
    with pytest.raises(InputError, match="two runs of the grid have the name 'quickstart,seed=1'"):
        grid.make_grid([QUICK], {}, {"seed": ["1", "1"]})


def test_every_domain_is_left_out_with_a_client_for_each_of_the_others(tmp_path):
    images = {f"{name}_images": np.zeros((3, 8, 8, 1), np.uint8) for name in ("a", "b", "c")}
    np.savez(tmp_path / "data.npz", **images, **{f"{name}_labels": [0, 1, 1] for name in ("a", "b", "c")})
    common = {"data.name": "arrays", "data.path": str(tmp_path / "data.npz"), "data.num_clients": "2"}
    common |= {"data.partition.name": "by_domain"}
    found = grid.make_grid([QUICK], common, {"data.unseen": ["all"]})
    assert [cell.own["data.unseen"] for cell in found] == ["a", "b", "c"]
    federation = build_data.build_federation(found[0].settings()["data"])[1]
    assert federation.num_clients == 2 and set(federation.unseen) == {"a"}


def test_leaving_out_the_only_domain_is_refused():
    with pytest.raises(InputError, match="digits has only one domain"):
        grid.make_grid([QUICK], {}, {"data.unseen": ["all"]})


@pytest.mark.parametrize(
    ("varied", "message"),
    [
        ("algorithm.lamb=0,1", "quickstart,lamb=0: --config.algorithm.lamb is unknown"),
        ("algorithm.learning_rate=0.1,1e-50", "rate=1e-50: config.algorithm.learning_rate: must be"),
        ("poison.name=flip_labels", "flip_labels: config.poison: fraction: give the fraction"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_name_of_its_run_before_training(varied, message, tmp_path, capsys):
    arguments = [f"--config={QUICK}", f"--vary={varied}", f"--workdir={tmp_path / 'grid'}"]
    assert compare.main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "grid").exists()


@pytest.mark.parametrize("text", ["seed", "seed=", "seed=1,,2", "=1"])
def test_vary_without_a_key_and_values_is_refused(text, tmp_path, capsys):
    assert compare.main([f"--config={QUICK}", f"--vary={text}", f"--workdir={tmp_path}"]) == 2
    assert "write a key and its values" in capsys.readouterr().err


def test_a_key_that_is_varied_twice_is_refused(tmp_path, capsys):
    flags = [f"--config={QUICK}", "--vary=seed=1,2", "--vary=seed=3", f"--workdir={tmp_path}"]
    assert compare.main(flags) == 2
    assert "seed is varied twice" in capsys.readouterr().err


@pytest.mark.slow
def test_a_grid_is_trained_tabulated_and_not_trained_twice(tmp_path, capsys):
    """One of three cells fails: an upload that is not finite ends it."""
    config, workdir = tmp_path / "small.py", tmp_path / "grid"
    config.write_text(CONFIG)
    arguments = [f"--config={config}", "--config.on_nonfinite=raise", f"--workdir={workdir}"]
    arguments.append("--vary=algorithm.learning_rate=0.05,0.1,1e30")
    assert compare.main(arguments) == 1
    said = capsys.readouterr().out
    assert "[2/3] small,learning_rate=0.1: done" in said and "together" not in said
    assert "[3/3] small,learning_rate=1e30: exit status 1: error:" in said
    table = (workdir / "test.md").read_text()
    assert "small learning_rate=0.05" in table and "1e30" not in table
    assert [cell["status"] for cell in json.loads((workdir / "grid.json").read_text())][:2] == ["done", "done"]
    assert compare.main(arguments) == 1
    assert "[1/3] small,learning_rate=0.05: was done" in capsys.readouterr().out
    assert (workdir / "test.md").read_text() == table


@pytest.mark.slow
def test_runs_that_differ_in_numbers_are_trained_together_and_programs_side_by_side(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fedjax_het.cli.distributed.layouts.allowed_cores", lambda: [*os.sched_getaffinity(0)] * 2)
    (tmp_path / "small.py").write_text(CONFIG)
    arguments = [f"--config={tmp_path / 'small.py'}", f"--workdir={tmp_path / 'grid'}", "--vary=seed=0,1"]
    arguments += ["--together=2", "--jobs=2"]
    assert compare.main([*arguments, "--vary=algorithm.learning_rate=0.05,0.1"]) == 0
    assert capsys.readouterr().out.count(" s together with 1 more") == 4
    rows = [line for line in (tmp_path / "grid" / "test.md").read_text().splitlines() if "learning_rate" in line]
    assert len(rows) == 2 and all(" ± " in row for row in rows)


def test_progress_of_a_run_is_read_from_the_present_part_of_its_log(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("round 70/80  of an earlier start\n")
    start = log.stat().st_size
    assert training._read_progress(log, start, "fedavg") == (0, "fedavg: starting")
    with log.open("a") as file:
        file.write("round 20/80  loss 1\nround 30/80  loss 0\nwarning: one\n\n")
    assert training._read_progress(log, start, "fedavg") == (30, "fedavg: warning: one")
