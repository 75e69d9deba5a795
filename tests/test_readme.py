"""What README shows is run as it stands."""

import re
from pathlib import Path

import pytest

from fedjax_het.engine import Simulation
from tests.harness import federation, model

BLOCKS = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)


def test_the_algorithm_that_readme_adds_learns():
    scope = {}
    exec(BLOCKS[1], scope)
    algorithm = scope["fedfair"](learning_rate=0.05, batch_size=8)
    simulation = Simulation(algorithm, model(), federation(), rounds=15, evaluate_every=15)
    _, metrics = simulation.advance(simulation.start(), 15)
    assert metrics.loss[0, -1] < 0.8 * metrics.loss[0, 0]


@pytest.mark.slow
def test_the_ten_lines_of_python(capsys):
    exec(BLOCKS[0], {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["fedavg", "fedld"]
    assert all(float(re.search(r"([\d.]+) ±", line)[1]) > 80 for line in lines)
