import functools
import json
import resource
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedjax_het.engine import Checkpoints, Simulation
from fedjax_het.engine.storage import checkpoint
from fedjax_het.errors import InputError
from tests.harness import algorithm, all_quick_for, federation, is_equal, model


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


@pytest.mark.slow
@all_quick_for("fedavg", "fedbn", "fedpac")
def test_a_resumed_run_ends_with_the_same_bits(name, tmp_path):
    simulation = build(name)
    expected, _ = simulation.advance(simulation.start(), 4)
    half, _ = simulation.advance(simulation.start(), 2)
    Checkpoints(tmp_path, "me").save(2, half)
    restored = Checkpoints(tmp_path, "me").restore(simulation.start())
    assert int(restored.server.round[0]) == 2
    resumed, metrics = simulation.advance(restored, 2)
    assert is_equal(expected, resumed)
    assert is_equal(simulation.evaluate(expected), simulation.evaluate(resumed))
    assert metrics.loss.shape == (1, 2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    simulation = build("fedavg")
    directory = tmp_path_factory.mktemp("saved")
    Checkpoints(directory, {"mu": 1}).save(3, simulation.start())
    return simulation, directory


# ---- of client states off the device ---------------------------------------------------------------------------------
def build_off_device(**options) -> Simulation:
    return build("scaffold", client_states="disk", examples="stream", **options)


def advance_in_blocks(simulation: Simulation, *blocks: int, directory=None):
    """A run with a checkpoint after each block."""
    state, done = simulation.start(), 0
    for num_rounds in blocks:
        state, _ = simulation.advance(state, num_rounds)
        done += num_rounds
        if directory:
            Checkpoints(directory, "me").save(done, state)
    return state


def with_all_client_states(state):
    return state._replace(clients=state.clients.take_all())


@pytest.mark.slow
def test_a_resumed_run_has_the_same_client_states(tmp_path):
    simulation = build_off_device()
    expected = with_all_client_states(advance_in_blocks(simulation, 4))
    advance_in_blocks(simulation, 1, 1, directory=tmp_path)
    restored = Checkpoints(tmp_path, "me").restore(simulation.start())
    resumed, _ = simulation.advance(restored, 2)
    assert is_equal(expected, with_all_client_states(resumed))
    assert is_equal(simulation.evaluate(advance_in_blocks(simulation, 4)), simulation.evaluate(resumed))


@pytest.mark.extended
def test_a_run_killed_between_states_and_checkpoint_resumes_from_the_one_before(tmp_path, monkeypatch):
    """Its segment exists, but not the checkpoint that lists it: the run resumes from the previous one."""
    simulation = build_off_device()
    expected = with_all_client_states(advance_in_blocks(simulation, 4))
    state = advance_in_blocks(simulation, 2, directory=tmp_path)
    state, _ = simulation.advance(state, 1)
    killed = Checkpoints(tmp_path, "me")
    monkeypatch.setattr(killed._manager, "save", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        killed.save(3, state)
    checkpoints = Checkpoints(tmp_path, "me")
    resumed = checkpoints.restore(simulation.start())
    assert int(resumed.server.round[0]) == 2
    resumed, _ = simulation.advance(resumed, 2)
    assert is_equal(expected, with_all_client_states(resumed))
    checkpoints.save(4, resumed)
    assert is_equal(expected, with_all_client_states(Checkpoints(tmp_path, "me").restore(simulation.start())))


@pytest.mark.extended
def test_an_older_checkpoint_can_still_be_restored(tmp_path):
    simulation = build_off_device()
    advance_in_blocks(simulation, 1, 1, 1, 1, directory=tmp_path)
    older = Checkpoints(tmp_path, "me").restore(simulation.start(), round=3)
    assert is_equal(with_all_client_states(advance_in_blocks(simulation, 3)), with_all_client_states(older))


@pytest.mark.extended
def test_a_damaged_file_of_client_states_is_refused(tmp_path):
    simulation = build_off_device()
    advance_in_blocks(simulation, 2, directory=tmp_path)
    path = next((tmp_path / "clients").iterdir())
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InputError, match=r"cannot be read.*truncated.*Delete that folder"):
        Checkpoints(tmp_path, "me").restore(simulation.start())


@pytest.mark.slow
def test_moving_client_states_on_or_off_the_device_is_refused(tmp_path):
    advance_in_blocks(build_off_device(), 1, directory=tmp_path)
    with pytest.raises(InputError, match=r"saved with client states off the device. Set client_states"):
        Checkpoints(tmp_path, "me").restore(build("scaffold").start())
    state, _ = build("scaffold").advance(build("scaffold").start(), 1)
    Checkpoints(tmp_path / "other", "me").save(1, state)
    with pytest.raises(InputError, match="saved with client states on the device"):
        Checkpoints(tmp_path / "other", "me").restore(build_off_device().start())


# ---- what cannot be used ---------------------------------------------------------------------------------------------
def test_an_empty_directory_has_no_latest_checkpoint(tmp_path):
    assert Checkpoints(tmp_path).latest() is None


@pytest.mark.extended
def test_only_the_newest_checkpoints_are_kept(tmp_path, saved):
    simulation, _ = saved
    kept = Checkpoints(tmp_path, keep=2)
    for round in (1, 2, 3):
        kept.save(round, simulation.start())
    assert sorted(int(p.name) for p in tmp_path.iterdir() if p.name.isdigit()) == [2, 3]


@pytest.mark.extended
def test_a_run_killed_while_it_deletes_an_old_checkpoint_leaves_no_damaged_one(tmp_path, saved, monkeypatch):
    simulation, _ = saved
    kept, rmtree = Checkpoints(tmp_path, keep=2), shutil.rmtree

    def delete_a_part(path, *_, **__):
        for part in Path(path).glob("**/state"):
            rmtree(part)
            raise KeyboardInterrupt

    for round in (1, 2):
        kept.save(round, simulation.start())
    monkeypatch.setattr(shutil, "rmtree", delete_a_part)
    with pytest.raises(KeyboardInterrupt):
        kept.save(3, simulation.start())
    monkeypatch.undo()
    assert [(saved.round, saved.damage) for saved in checkpoint.inspect_checkpoints(tmp_path)] == [(2, None), (3, None)]
    Checkpoints(tmp_path, keep=2).save(4, simulation.start())
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["3", "4"]


@pytest.mark.slow
def test_a_checkpoint_of_another_algorithm_is_refused(saved):
    _, directory = saved
    with pytest.raises(InputError, match=r"another algorithm.*memory/control.*absent in the checkpoint"):
        Checkpoints(directory, {"mu": 1}).restore(build("scaffold").start())


@pytest.mark.slow
def test_a_checkpoint_of_another_number_of_seeds_is_refused(saved):
    _, directory = saved
    with pytest.raises(InputError, match=r"int32\[1, 5\] in the checkpoint and int32\[2, 5\] in"):
        Checkpoints(directory, {"mu": 1}).restore(build("fedavg", num_seeds=2).start())


@pytest.mark.extended
def test_a_checkpoint_of_another_run_is_refused(saved):
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
def test_a_truncated_checkpoint_is_refused(saved, tmp_path, item):
    simulation, _ = saved
    Checkpoints(tmp_path).save(1, simulation.start())
    for path in (tmp_path / "1" / item).rglob("*"):
        if path.is_file() and path.stat().st_size > 8:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=r"cannot be read.*Delete that folder"):
        Checkpoints(tmp_path).restore(simulation.start())


def test_a_directory_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        Checkpoints(tmp_path / "file" / "below")


def test_a_checkpoint_that_has_no_room_is_not_begun(saved, tmp_path, monkeypatch):
    simulation, _ = saved
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    with pytest.raises(OSError, match="No space left on device"):
        Checkpoints(tmp_path).save(1, simulation.start())
    assert not list(tmp_path.iterdir())


def test_a_failed_write_is_raised_and_its_traceback_is_not_logged(saved, tmp_path, caplog):
    simulation, _ = saved
    kept, limits = Checkpoints(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises((OSError, ValueError), match="File too large"):
            kept.save(1, simulation.start())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not [record for record in caplog.records if record.name == "absl" and record.exc_info]


def test_the_description_of_a_state_is_json_with_shapes_and_types(saved):
    _, directory = saved
    about = json.loads(next((directory / "3" / "about").iterdir()).read_text())
    assert about["leaves"]["server/shared/params/classifier/bias"] == "float32[1, 3]"
