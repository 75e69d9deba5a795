import pytest

from experiments import catalogue, train
from fedjax_het import data
from fedjax_het.algorithms import ALGORITHMS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_recipe_says_what_it_is_and_whose(name):
    title, paper = catalogue.description(ALGORITHMS[name])
    assert title.endswith(".") and len(title) > 20
    assert len(paper) > 40


def test_traffic_is_that_of_the_records():
    federation = data.toy(num_clients=2, image=(12, 12, 1))
    plain, double = (catalogue.traffic(ALGORITHMS[name], federation) for name in ("fedavg", "scaffold"))
    assert 1.9 < double / plain < 2.0  # its statistics of batch norm have no control variate


def test_list_prints_every_name(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stopped:
        train.parse(["--list"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ALGORITHMS)
