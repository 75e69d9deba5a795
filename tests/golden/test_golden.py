"""Every stored case; all golden cases of the shared folder with -m slow."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from tests.golden.__main__ import main, run_case
from tests.golden.cases import Case, find_cases, load_checks
from tests.shared import shared_path

HERE = Path(__file__).parent / "vectors"
load_checks()


LARGE = ("harmofl_unet_hw32", "resnet18_hw64", "fedld_repo_4", "byzfl_s_outliers_f2")  # slow to compile


def stored_cases() -> Iterator[ParameterSet]:
    """The smallest file of every family as a quick test, the others as extended ones; the large ones are slow."""
    for _, family in itertools.groupby(find_cases(HERE), key=lambda path: path.parent):
        for number, path in enumerate(sorted(family, key=lambda path: (path.stem in LARGE, path.stat().st_size))):
            mark = pytest.mark.slow if path.stem in LARGE else pytest.mark.extended
            marks = mark if number or path.stem in LARGE else ()
            yield pytest.param(path, id=f"{path.parent.name}/{path.stem}", marks=marks)


@pytest.mark.parametrize("path", list(stored_cases()))
def test_the_package_agrees_with_every_stored_case(path):
    _, outcome = run_case(path)
    assert not outcome.problems


def test_comparison_detects_a_wrong_number():
    path = HERE / "fedavg" / "s_random_a.npz"
    case = Case(path)
    assert not case.compare("agg_f64", case["agg_f64"] + 1e-6, 1e-9).is_ok
    assert not case.compare("agg_f64", case["agg_f64"] * float("nan"), 1e-9).is_ok
    assert not case.compare("agg_f64", case["agg_f64"][:-1], 1e-9).is_ok


def test_nan_on_both_sides_does_not_agree(tmp_path):
    with np.load(HERE / "fedavg" / "s_random_a.npz") as arrays:
        np.savez(tmp_path / "nan.npz", **dict(arrays) | {"agg_f64": arrays["agg_f64"] * float("nan")})
    case = Case(tmp_path / "nan.npz")
    held = case.compare("agg_f64", case["agg_f64"])
    assert not held.is_ok
    assert str(held) == "agg_f64: 37 entries of theirs and 37 of ours are not finite, of 37"


def test_the_command_lists_failed_and_uncovered_cases(tmp_path, capsys):
    arrays = dict(np.load(HERE / "fedavg" / "s_random_a.npz"))
    for family, name, change in [
        ("fedavg", "s_good", {}),
        ("fedavg", "s_bad", {"agg_f64": arrays["agg_f64"] + 1e-6}),
        ("fedavg", "s_broken", {"W": arrays["W"][:3]}),
        ("fedavg", "s_more", {"eta_g": np.array(0.5)}),
        ("fedgh", "unheard", {}),
        ("fedunheard", "s_good", {}),
    ]:
        (tmp_path / family).mkdir(exist_ok=True)
        np.savez(tmp_path / family / f"{name}.npz", **arrays | change)
    assert main(tmp_path) == 1
    out = capsys.readouterr().out
    assert "neither held nor failed: 1\n    fedunheard: 1 cases" in out
    assert "cases failed: 4\n    fedavg/s_bad\n    fedavg/s_broken\n    fedavg/s_more\n    fedgh/unheard\n" in out
    assert "array 'eta_g' of fedavg/s_more.npz is not read" in out
    assert "no check takes this name; those of fedgh" in out
    assert "5 of 6 cases covered: 1 ok" in out
    assert out.endswith("0 contained, 4 failed; 1 not covered\n")
    assert main(tmp_path / "nothing") == 1


def test_uncovered_cases_do_not_change_the_exit_status(tmp_path):
    for family in ("fedavg", "fedunheard"):
        (tmp_path / family).mkdir()
        shutil.copy(HERE / "fedavg" / "s_random_a.npz", tmp_path / family)
    assert main(tmp_path) == 0
    shutil.rmtree(tmp_path / "fedavg")
    assert main(tmp_path) == 1  # nothing was held


@pytest.mark.slow
def test_the_package_agrees_with_all_golden_cases(capsys):
    root = shared_path("golden")
    assert main(root) == 0, capsys.readouterr().out
