"""Stored cases with known changes: every value of a file is read and used."""

import json

import numpy as np
import pytest

from tests.golden.__main__ import Outcome, run_case
from tests.golden.cases import Case, load_checks
from tests.golden.released_rules import adjusted_weights, guided_weights, principal_mean, tournament_mean
from tests.golden.test_golden import HERE

pytestmark = pytest.mark.extended

load_checks()


@pytest.fixture
def hold_changed(tmp_path):
    """(path beside the tests, new name, keys of meta that change, arrays that change) -> the result of the case."""

    def change(source: str, name: str, meta: dict | None = None, **arrays: np.ndarray) -> Outcome:
        held = read_arrays(source) | arrays
        if meta:
            held["meta"] = np.array(json.dumps(json.loads(str(held["meta"])) | meta))
        path = tmp_path / source.split("/")[0] / f"{name}.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez(path, **held)
        return run_case(path)[1]

    return change


def read_arrays(source: str) -> dict[str, np.ndarray]:
    with np.load(HERE / f"{source}.npz") as arrays:
        return dict(arrays)


def test_a_fault_is_contained_only_with_the_expected_value_in_its_place(hold_changed, monkeypatch):
    source = "fedgh/official_hgd_d_opposite"  # 0/0 in FedDM's code
    outcome = hold_changed(source, "official_hgd_x")
    assert outcome.status == "contained"
    assert [comparison.array for comparison in outcome.contained] == ["agg_feddm"]
    monkeypatch.setattr("tests.golden.family_fedgh.tournament_mean", lambda stack, reference: stack[0])
    assert hold_changed(source, "official_hgd_y").problems[0].startswith("agg_feddm: ")


@pytest.mark.parametrize(
    ("source", "transcribed"),
    [
        ("fedld/official_flat_s_random_a", lambda case: principal_mean(case["G"], float(case["k_proportion"]))),
        ("fedgh/official_hgd_d_m_gt_d", lambda case: tournament_mean(case["G"], case["history_in"])),
        ("fedgh/official_hgd_d_conflict_pair", lambda case: tournament_mean(case["G"], case["history_in"])),
        ("fedrd/ref_weights_s100", lambda case: guided_weights(case["theta_g"], case["thetas"], case["gaps"])),
    ],
)
def test_released_rules_agree_with_stored_numbers_of_the_authors_code(source, transcribed):
    case = Case(HERE / f"{source}.npz")
    name = {"fedld": "agg", "fedgh": "agg_feddm", "fedrd": "weights"}[case.family]
    assert case.compare(name, transcribed(case), 1e-12).is_ok


def test_the_released_rule_of_fedga_agrees_with_its_stored_numbers():
    case = Case(HERE / "fedga" / "s2_loss5_seq.npz")
    start, gaps = case["weights_official"][0], case["after"] - case["before"]
    assert case.compare("weights_official", adjusted_weights(start, gaps, case["step_passed"]), 1e-12).is_ok


def test_an_unread_key_of_meta_is_named(hold_changed):
    outcome = hold_changed("harmofl/gamma_s3_uneven", "gamma_x", {"weights": [1, 2, 3]})
    assert outcome.problems == ["meta key 'weights' of harmofl/gamma_x.npz is not read"]


def test_a_client_with_a_nan_gap_is_left_out(tmp_path):
    generator, shapes = np.random.default_rng(0), {"low": (2, 3), "head": (4,)}
    arrays = {
        f"{part}__{key}": generator.normal(size=shapes[key]) for part in ("g", "d0", "d1", "d2") for key in shapes
    }
    arrays |= {f"out__{key}": np.full(shape, np.nan) for key, shape in shapes.items()}
    arrays |= {name: np.full(3, np.nan) for name in ("beta", "weights", "weights_corrected")}
    meta = {"indicator": "low", "n_models_in_dict": 3, "held_out_domain_in_model_dict": False}
    path = tmp_path / "fedrd" / "agg_x.npz"
    path.parent.mkdir()
    np.savez(path, gaps=np.array([0.3, np.nan, -0.2]), meta=np.array(json.dumps(meta)), **arrays)
    case, outcome = run_case(path)
    assert outcome.status == "contained", outcome.problems
    assert {comparison.array for comparison in outcome.contained} == {"out__low", "out__head"}
    assert case.excused.keys() == {"beta", "weights", "weights_corrected"}
