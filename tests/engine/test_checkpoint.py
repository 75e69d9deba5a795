import json

import pytest

from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.engine import Checkpoints, Simulation, checkpoint
from fedjax_het.errors import InputError
from tests.harness import algorithm, federation, is_equal, model


def build(name: str, num_seeds: int = 1, **options) -> Simulation:
    return Simulation(
        algorithm(name, **options),
        model(),
        federation(),
        rounds=4,
        cohort_size=3,
        evaluate_every=4,
        num_seeds=num_seeds,
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_resumed_run_ends_with_the_same_bits(name, tmp_path):
    simulation = build(name)
    through, _ = simulation.advance(simulation.start(), 4)
    half, _ = simulation.advance(simulation.start(), 2)
    Checkpoints(tmp_path, "me").save(2, half)
    restored = Checkpoints(tmp_path, "me").restore(simulation.start())
    assert int(restored.server.round[0]) == 2
    resumed, metrics = simulation.advance(restored, 2)
    assert is_equal(through, resumed)
    assert is_equal(simulation.evaluate(through), simulation.evaluate(resumed))
    assert metrics.loss.shape == (1, 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    simulation = build("fedavg")
    directory = tmp_path_factory.mktemp("saved")
    Checkpoints(directory, {"mu": 1}).save(3, simulation.start())
    return simulation, directory


def test_nothing_there(tmp_path):
    assert Checkpoints(tmp_path).latest() is None


def test_only_the_newest_stay(tmp_path, saved):
    simulation, _ = saved
    kept = Checkpoints(tmp_path, keep=2)
    for round in (1, 2, 3):
        kept.save(round, simulation.start())
    assert sorted(int(p.name) for p in tmp_path.iterdir() if p.name.isdigit()) == [2, 3]


def test_another_algorithm(saved):
    _, directory = saved
    with pytest.raises(InputError, match=r"another algorithm.*memory/control.*absent there"):
        Checkpoints(directory, {"mu": 1}).restore(build("scaffold").start())


def test_another_number_of_seeds(saved):
    _, directory = saved
    with pytest.raises(InputError, match=r"int32\[1, 5\] there and int32\[2, 5\] here"):
        Checkpoints(directory, {"mu": 1}).restore(build("fedavg", num_seeds=2).start())


def test_another_run(saved):
    simulation, directory = saved
    with pytest.raises(InputError, match="another run"):
        Checkpoints(directory, {"mu": 2}).restore(simulation.start())


def test_a_newer_version(saved, tmp_path, monkeypatch):
    simulation, _ = saved
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    Checkpoints(tmp_path).save(1, simulation.start())
    monkeypatch.undo()
    with pytest.raises(InputError, match="newer version"):
        Checkpoints(tmp_path).restore(simulation.start())


@pytest.mark.parametrize("item", ["state", "about"])
def test_truncated(saved, tmp_path, item):
    simulation, _ = saved
    Checkpoints(tmp_path).save(1, simulation.start())
    for path in (tmp_path / "1" / item).rglob("*"):
        if path.is_file() and path.stat().st_size > 8:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=r"cannot be read.*Delete that folder"):
        Checkpoints(tmp_path).restore(simulation.start())


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        Checkpoints(tmp_path / "file" / "below")


def test_what_is_written_about_a_state_can_be_read(saved):
    _, directory = saved
    about = json.loads(next((directory / "3" / "about").iterdir()).read_text())
    assert about["leaves"]["server/shared/params/classifier/bias"] == "float32[1, 3]"
