import csv

import pytest

from experiments.benchmarks import scaling
from experiments.benchmarks.scaling_point import Point, measure
from fedjax_het.engine import chunked


def test_a_study_lists_points_up_to_the_largest():
    points = scaling.STUDIES["aggregators"].points(largest=100)
    assert Point("fedld", population=100, cohort=100, parameters=10_000) in points
    assert max(point.cohort for point in points) == 100


@pytest.mark.slow
@pytest.mark.parametrize("residence", [("device", "device"), ("disk", "stream")])
def test_a_point_is_measured_with_consistent_figures(residence):
    measured = measure(Point("scaffold", 50, 4, 700, *residence, calls=2), chunked(1))
    assert 600 < measured["parameters"] < 800
    assert 0 < measured["seconds_min"] <= measured["seconds_median"] <= measured["seconds_max"]
    assert measured["client_steps_per_second"] == pytest.approx(4 * 2 / measured["seconds_median"])
    assert measured["state_mb"] == pytest.approx(50 * (measured["parameters"] + 1) * 4 / 1e6)


def measure_without_fedgh(point):
    """A machine on which FedGH does not run."""
    if point.algorithm == "fedgh":
        print("  failed: out of memory")
        return None
    return point._asdict() | {"seconds_median": point.cohort / 1000, "peak_rss_mb": 400.0}


def test_a_failed_point_is_named_and_the_others_are_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(scaling, "_measure_in_process", measure_without_fedgh)
    assert scaling.main(["--study=aggregators", f"--out={tmp_path}"]) == 1
    rows = list(csv.DictReader((tmp_path / "scaling.csv").open()))
    assert [row["algorithm"] for row in rows] == ["fedavg"] * 3 + ["fedld"] * 3 + ["fedmgc"] * 3
    assert (tmp_path / "aggregators.png").stat().st_size > 5000
    assert "failed: out of memory" in capsys.readouterr().out


def test_an_unknown_study_exits_with_status_2(capsys, tmp_path):
    assert scaling.main(["--study=populations", f"--out={tmp_path / 'x'}"]) == 2
    assert "Did you mean 'population'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
