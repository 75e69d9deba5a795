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


QUICK = ("fedavg", "fedld", "fedrd", "harmofl", "fedmgc", "fedgh", "scaffold", "compression")  # families
LARGE = ("harmofl_unet_hw32", "resnet18_hw64", "fedld_repo_4", "byzfl_s_outliers_f2")  # slow to compile


def stored_cases() -> Iterator[ParameterSet]:
    """The smallest files of some families as quick tests, the others as extended ones; the large ones are slow."""
    for _, family in itertools.groupby(find_cases(HERE), key=lambda path: path.parent):
        for number, path in enumerate(sorted(family, key=lambda path: (path.stem in LARGE, path.stat().st_size))):
            mark = pytest.mark.slow if path.stem in LARGE else pytest.mark.extended
            marks = mark if number or path.parent.name not in QUICK or path.stem in LARGE else ()
            yield pytest.param(path, id=f"{path.parent.name}/{path.stem}", marks=marks)


@pytest.mark.every_case
@pytest.mark.parametrize("path", list(stored_cases()))
def test_the_package_agrees_with_every_stored_case(path):
    _, outcome = run_case(path)
    assert not outcome.problems


NAN = float("nan")


@pytest.mark.parametrize(
    ("stored", "ours", "agree"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0 + 2e-9], True),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0 + 4e-9], False),
        ([1.0, 2.0, 3.0], [1.0, 2.0], False),
        ([1.0, NAN, 3.0], [1.0, NAN, 3.0 + 2e-9], True),
        ([1.0, NAN, 3.0], [1.0, NAN, 3.0 + 4e-9], False),
        ([1.0, NAN, 3.0], [1.0, 2.0, 3.0], False),
        ([1.0, 2.0, 3.0], [1.0, NAN, 3.0], False),
        ([1.0, NAN, 3.0], [NAN, 1.0, 3.0], False),
        ([1.0, 2.0, np.inf], [1.0, 2.0, np.inf], False),
    ],
)
def test_numbers_agree_relative_to_the_largest_finite_one_and_nan_only_with_nan(tmp_path, stored, ours, agree):
    np.savez(tmp_path / "any.npz", stored=stored)
    assert Case(tmp_path / "any.npz").compare("stored", ours, 1e-9).is_ok == agree


def test_a_harmofl_case_may_hold_nan_where_the_formula_is_0_over_0(tmp_path):
    """A mean over the steps of a client that takes none."""
    paths = {"traj0": np.ones((1, 4)), "traj1": np.arange(12.0).reshape(3, 4)}
    (tmp_path / "harmofl").mkdir()
    path = tmp_path / "harmofl" / "gamma_any.npz"
    for after, is_held in ((NAN, True), (0.0, False)):
        np.savez(path, **paths, gamma_after=after, gamma_before=after, theta=np.ones(4))
        assert (not run_case(path)[1].problems) == is_held


def test_a_case_without_any_finite_number_fails(tmp_path):
    (tmp_path / "fedavg").mkdir()
    path = tmp_path / "fedavg" / "s_any.npz"
    with np.load(HERE / "fedavg" / "s_random_a.npz") as arrays:
        np.savez(path, **{name: arrays[name] * (NAN if name[0] in "Wa" else 1) for name in arrays if name[0] != "p"})
    assert run_case(path)[1].problems == ["no finite number was compared"]


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
    assert main(tmp_path) == 1  # no case was held


@pytest.mark.slow
def test_the_package_agrees_with_all_golden_cases(capsys):
    root = shared_path("golden")
    assert main(root) == 0, capsys.readouterr().out
