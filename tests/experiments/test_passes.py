import csv

import pytest

from experiments import passes
from fedjax_het.engine.layout import sharded, vmapped


@pytest.mark.parametrize("layout", [vmapped, sharded(2)], ids=str)
def test_every_aggregator_beside_the_mean(layout):
    rows = passes.measure(4, 4000, layout, ["float32", "bfloat16"], repeats=2)
    wanted = ["fedavg", *(f"{name} {stack}" for stack in passes.STACKS for name in passes.EDITING)]
    assert [row.aggregator for row in rows] == wanted
    assert rows[0].passes == 1
    for row in rows:
        assert 0 < row.least <= row.seconds <= row.most
        assert row.passes == pytest.approx(row.seconds / rows[0].seconds)
        num_bytes = 4000 * (2 if "bfloat16" in row.aggregator else 4)
        assert row.gigabytes_a_second == pytest.approx(num_bytes / row.seconds / 1e9)
        assert 0 < row.small_share <= 1


def test_the_table_is_printed_and_written(tmp_path, capsys):
    out = tmp_path / "passes.csv"
    argv = ["--clients=2,4", "--entries=800", "--stack=float32", "--repeats=1", f"--csv={out}"]
    assert passes.main(argv) == 0
    rows = list(csv.DictReader(out.open()))
    assert [(row["clients"], row["aggregator"]) for row in rows[:2]] == [("2", "fedavg"), ("2", "fedld float32")]
    assert len(rows) == 8 == len(capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--clients=ten", "ten"),
        ("--clients=0", "multiple"),
        ("--stack=float16", "float16"),
        ("--devices=99", "99 devices"),
        ("--clients=3 --devices=2", "multiple of the 2 devices"),
        ("--entries=5 --clients=10", "--entries"),
        ("--repeats=0", "--repeats"),
    ],
)
def test_mistakes_are_status_2(argument, message, capsys):
    assert passes.main(argument.split()) == 2
    assert message in capsys.readouterr().err
