import functools
import json

import pytest

from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.engine import Checkpoints, Simulation
from fedjax_het.engine.storage import checkpoint
from fedjax_het.errors import InputError
from tests.harness import algorithm, federation, is_equal, model


@functools.cache
def build(name: str, num_seeds: int = 1, **options) -> Simulation:
    return Simulation(
        algorithm(name),
        model(),
        federation(),
        rounds=4,
        cohort_size=3,
        evaluate_every=4,
        num_seeds=num_seeds,
        **options,
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


# ---- of client states off the device ---------------------------------------------------------------------------------
def stored(**options) -> Simulation:
    return build("scaffold", client_states="disk", examples="stream", **options)


def through(simulation: Simulation, *blocks: int, directory=None):
    """A run with a checkpoint after each block."""
    state, done = simulation.start(), 0
    for num_rounds in blocks:
        state, _ = simulation.advance(state, num_rounds)
        done += num_rounds
        if directory:
            Checkpoints(directory, "me").save(done, state)
    return state


def whole(state):
    return state._replace(clients=state.clients.take_all())


def test_a_resumed_run_has_the_same_client_states(tmp_path):
    simulation = stored()
    expected = whole(through(simulation, 4))
    through(simulation, 1, 1, directory=tmp_path)
    restored = Checkpoints(tmp_path, "me").restore(simulation.start())
    resumed, _ = simulation.advance(restored, 2)
    assert is_equal(expected, whole(resumed))
    assert is_equal(simulation.evaluate(through(simulation, 4)), simulation.evaluate(resumed))


def test_killed_between_the_states_and_the_checkpoint(tmp_path, monkeypatch):
    """Its segment is there, the checkpoint that lists it is not: the run goes on from the one before."""
    simulation = stored()
    expected = whole(through(simulation, 4))
    state = through(simulation, 2, directory=tmp_path)
    state, _ = simulation.advance(state, 1)
    killed = Checkpoints(tmp_path, "me")
    monkeypatch.setattr(killed._manager, "save", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        killed.save(3, state)
    checkpoints = Checkpoints(tmp_path, "me")
    resumed = checkpoints.restore(simulation.start())
    assert int(resumed.server.round[0]) == 2
    resumed, _ = simulation.advance(resumed, 2)
    assert is_equal(expected, whole(resumed))
    checkpoints.save(4, resumed)
    assert is_equal(expected, whole(Checkpoints(tmp_path, "me").restore(simulation.start())))


def test_the_one_before_can_still_be_read(tmp_path):
    simulation = stored()
    through(simulation, 1, 1, 1, 1, directory=tmp_path)
    older = Checkpoints(tmp_path, "me").restore(simulation.start(), round=3)
    assert is_equal(whole(through(simulation, 3)), whole(older))


def test_a_damaged_segment(tmp_path):
    simulation = stored()
    through(simulation, 2, directory=tmp_path)
    path = next((tmp_path / "clients").iterdir())
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match=r"cannot be read.*cut short.*Delete that folder"):
        Checkpoints(tmp_path, "me").restore(simulation.start())


def test_states_must_stay_where_they_were(tmp_path):
    through(stored(), 1, directory=tmp_path)
    with pytest.raises(InputError, match=r"its client states were off the device, not on it. Set client_states"):
        Checkpoints(tmp_path, "me").restore(build("scaffold").start())
    state, _ = build("scaffold").advance(build("scaffold").start(), 1)
    Checkpoints(tmp_path / "other", "me").save(1, state)
    with pytest.raises(InputError, match="were on the device, not off it"):
        Checkpoints(tmp_path / "other", "me").restore(stored().start())


# ---- what cannot be used ---------------------------------------------------------------------------------------------
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


@pytest.mark.parametrize(("format", "age"), [(99, "newer"), (1, "older")])
def test_a_checkpoint_of_another_version_is_refused(saved, tmp_path, monkeypatch, format, age):
    simulation, _ = saved
    monkeypatch.setattr(checkpoint, "FORMAT", format)
    Checkpoints(tmp_path).save(1, simulation.start())
    monkeypatch.undo()
    with pytest.raises(InputError, match=f"written by an? {age} version"):
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
