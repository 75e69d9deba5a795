import pytest

from experiments.benchmarks import aggregators
from fedjax_het.engine.parallel.layout import sharded, vmapped

pytestmark = pytest.mark.extended


@pytest.mark.slow
@pytest.mark.parametrize("layout", [vmapped, pytest.param(sharded(2), marks=pytest.mark.slow)], ids=str)
def test_every_aggregator_is_measured_with_the_mean(layout):
    rows, rate = aggregators.measure(4, 4000, layout, ["float32", "bfloat16"], repeats=2)
    wanted = ["fedavg", *(f"{name} {stack}" for stack in aggregators.STACKS for name in aggregators.EDITING_ALGORITHMS)]
    assert [row.aggregator for row in rows] == wanted
    assert rows[0].excess_time == 0
    assert rate > 1e8
    for row in rows:
        assert 0 < row.minimum <= row.seconds <= row.maximum
        assert row.excess_time == pytest.approx(row.seconds / rows[0].seconds - 1)
        num_bytes = 4000 * (2 if "bfloat16" in row.aggregator else 4)
        assert row.gigabytes_per_second == pytest.approx(num_bytes / row.seconds / 1e9)
        assert 0 < row.small_share <= 1


@pytest.mark.slow
def test_the_table_is_printed(capsys):
    assert aggregators.main(["--clients=2,4", "--entries=800", "--stack=float32", "--repeats=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "2",
        "fedavg",
        *aggregators.EDITING_ALGORITHMS,
        "4",
        "fedavg",
        *aggregators.EDITING_ALGORITHMS,
    ]


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
def test_input_errors_exit_with_status_2(argument, message, capsys):
    assert aggregators.main(argument.split()) == 2
    assert message in capsys.readouterr().err
