"""Traffic between devices in a round, read off the compiled program; the documentation extrapolates from it."""

import math
import re
from collections import Counter

import pytest

from fedjax_het import models, tree
from fedjax_het.engine import Simulation, sharded
from tests.harness import algorithm, federation

BYTES = {"f32": 4, "f64": 8, "s32": 4, "s64": 8, "u32": 4, "pred": 1}
COHORT, DEVICES = 8, 4


def traffic(name: str, num_clients: int) -> Counter:
    """Bytes of the results of all collectives by their kind, in models; none of them is in an inner loop."""
    simulation = Simulation(
        algorithm(name),
        models.mlp(3, hidden=(300,)),
        federation(num_clients),
        rounds=2,
        cohort_size=None if num_clients == COHORT else COHORT,
        evaluate_every=2,
        layout=sharded(DEVICES),
    )
    one = tree.num_bytes(simulation.executor.traced.shapes.state.server.shared)
    found = Counter()
    for shapes, kind in re.findall(
        r"= (.*?) (all-gather|all-reduce|all-to-all|reduce-scatter)(?:-start)?\(", simulation.executor.program.as_text()
    ):
        for dtype, shape in re.findall(rf"({'|'.join(BYTES)})\[([\d,]*)\]", shapes):
            found[kind] += BYTES[dtype] * math.prod(int(size) for size in shape.split(",") if size) / one
    return found


@pytest.mark.parametrize(
    ("name", "num_clients", "gathered", "traded", "reduced"),
    [
        ("fedavg", 16, 0, 0, 1),
        ("fedld", 16, 0, COHORT / DEVICES, 1),  # each device its part of the columns, for the Gram matrix
        ("scaffold", 16, COHORT, 0, COHORT + 2),  # control variates there and back; the sums of updates and of changes
        ("scaffold", COHORT, 0, 0, 2),  # everyone takes part: each device has what it needs
    ],
)
def test_traffic_between_devices_is_the_documented_number_of_models(name, num_clients, gathered, traded, reduced):
    found = traffic(name, num_clients)
    assert found["all-gather"] == pytest.approx(gathered, abs=0.1)
    assert found["all-to-all"] == pytest.approx(traded, abs=0.1)
    assert found["all-reduce"] == pytest.approx(reduced, abs=0.1)
    assert found["reduce-scatter"] < 0.1
