"""Every case that lies beside the tests; the whole set, where it is at hand, with -m slow."""

from pathlib import Path

import jax
import numpy as np
import pytest

from tests.golden.__main__ import main
from tests.golden.cases import Case, check_of, find
from tests.golden.register import load_all
from tests.shared import shared_path

HERE = Path(__file__).parent / "vectors"
load_all()


@pytest.mark.parametrize("path", find(HERE), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_vector(path):
    case = Case(path)
    with jax.enable_x64(True):
        comparisons = list(check_of(case)(case))
    assert comparisons
    assert not [c for c in comparisons if not c.is_ok]


def test_a_wrong_number_is_found(tmp_path):
    path = HERE / "fedavg" / "s_random_a.npz"
    case = Case(path)
    assert not case.compare("agg_f64", case["agg_f64"] + 1e-6, 1e-9).is_ok
    assert not case.compare("agg_f64", case["agg_f64"] * float("nan"), 1e-9).is_ok
    assert not case.compare("agg_f64", case["agg_f64"][:-1], 1e-9).is_ok


def test_the_command_tells_what_failed_and_what_it_does_not_know(tmp_path, capsys):
    arrays = dict(np.load(HERE / "fedavg" / "s_random_a.npz"))
    for family, name, change in [
        ("fedavg", "s_good", {}),
        ("fedavg", "s_bad", {"agg_f64": arrays["agg_f64"] + 1e-6}),
        ("fedavg", "s_broken", {"W": arrays["W"][:3]}),
        ("fedunheard", "s_good", {}),
    ]:
        (tmp_path / family).mkdir(exist_ok=True)
        np.savez(tmp_path / family / f"{name}.npz", **arrays | change)
    assert main(tmp_path) == 1
    out = capsys.readouterr().out
    assert "cases without a check: 1\n    fedunheard/s_good" in out
    assert "cases failed: 2\n    fedavg/s_bad\n    fedavg/s_broken" in out
    assert "3 of 4 cases held" in out
    assert main(tmp_path / "nothing") == 1


@pytest.mark.slow
def test_everything(capsys):
    root = shared_path("golden")
    assert main(root) == 0, capsys.readouterr().out
