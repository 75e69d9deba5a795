"""Errors for invalid files and parts that do not fit together: one message, status 2, no partial files."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from fedjax_het.cli import train

FILE = """
def get_config():
    return dict(
        algorithm=dict(name="fedavg", batch_size=4),
        model=dict(name="mlp", hidden=(4,)),
        data=dict(name="digits", num_clients=3, partition=dict(name="iid")),
        rounds=2, evaluate_every=1, checkpoint_every=1,
    )
"""


@pytest.fixture
def refused(tmp_path, capsys):
    """Run with these overrides, expect an error, and return its message."""
    config, workdir = tmp_path / "small.py", tmp_path / "run"
    config.write_text(FILE)

    def run(*overrides: str) -> str:
        assert train.main([f"--config={config}", f"--workdir={workdir}", *overrides]) == 2
        message = capsys.readouterr().err
        assert message.startswith("error: ") and "Traceback" not in message
        assert not workdir.exists()
        return message

    return run


@pytest.fixture
def folder(tmp_path):
    """domain/class/image with two domains and two classes."""
    root = tmp_path / "images"
    for domain in ("photo", "sketch"):
        for name in ("cat", "dog"):
            (root / domain / name).mkdir(parents=True)
            for i in range(3):
                Image.fromarray(np.full((8, 8, 3), 40 * i, np.uint8)).save(root / domain / name / f"{i}.png")
    return root


def from_folder(root, *more: str) -> list[str]:
    return ["--config.data.name=folders", f"--config.data.path={root}", *more]


def test_a_corrupt_image_is_named(refused, folder):
    path = folder / "photo" / "dog" / "1.png"
    path.write_bytes(path.read_bytes()[:40])
    assert str(path) in refused(*from_folder(folder))


def test_an_empty_class_is_named(refused, folder):
    for path in (folder / "sketch" / "cat").iterdir():
        path.unlink()
    assert str(folder / "sketch" / "cat") in refused(*from_folder(folder))


def test_mixed_sizes_are_named_and_accepted_with_a_size(refused, folder):
    Image.fromarray(np.zeros((9, 7, 3), np.uint8)).save(folder / "sketch" / "cat" / "0.png")
    message = refused(*from_folder(folder))
    assert "size" in message and "0.png" in message


def test_a_truncated_file_is_refused(refused, tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, images=np.zeros((40, 4, 4), np.uint8), labels=np.arange(40) % 3)
    path.write_bytes(path.read_bytes()[:200])
    assert str(path) in refused("--config.data.name=arrays", f"--config.data.path={path}")


@pytest.mark.parametrize(
    ("labels", "images", "message"),
    [
        (np.arange(40) % 3 - 1, np.zeros((40, 4, 4), np.uint8), "labels[0] is -1"),
        (np.arange(40) % 3, np.full((40, 4, 4), np.nan, np.float32), "inputs[0] holds NaN"),
        (np.arange(39) % 3, np.zeros((40, 4, 4), np.uint8), "40 inputs"),
    ],
)
def test_bad_values_are_refused(refused, tmp_path, labels, images, message):
    path = tmp_path / "data.npz"
    np.savez(path, images=images, labels=labels)
    assert message.lower() in refused("--config.data.name=arrays", f"--config.data.path={path}").lower()


def test_batch_norm_with_batches_of_one_example_is_refused(refused):
    assert "batches of one example" in refused("--config.model.norm=batch", "--config.algorithm.batch_size=1")


def test_amplitude_normalization_without_images_is_refused(refused, tmp_path):
    path = tmp_path / "vectors.npz"
    np.savez(path, images=np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32), labels=np.arange(40) % 3)
    arguments = ["--config.data.name=arrays", f"--config.data.path={path}", "--config.algorithm.name=harmofl"]
    assert "amplitude normalization takes images" in refused(*arguments)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("labels", "model", "message"),
    [
        (
            "masks",
            "mlp",
            r"config.model: x has masks, a class for each pixel, but the model's outputs are (2,) per example",
        ),
        (
            "labels",
            "unet",
            "config.model: x has one class for each example, but the model's outputs are (16, 16, 2) per",
        ),
    ],
)
def test_a_model_for_other_labels_is_refused(refused, tmp_path, labels, model, message):
    images = np.random.default_rng(0).integers(0, 255, (20, 16, 16), np.uint8)
    np.savez(tmp_path / "x.npz", images=images, **{labels: images % 2 if labels == "masks" else np.arange(20) % 2})
    data = ["--config.data.name=arrays", f"--config.data.path={tmp_path / 'x.npz'}", "--config.layout=vmapped"]
    assert message in refused(*data, f"--config.model.name={model}")


def test_images_too_small_for_the_network_are_refused(refused):
    assert "8" in refused("--config.model.name=lenet")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.momentum=2"], "config.algorithm.momentum: must be a number in [0, 1), not 2.0."),
        (
            ["algorithm.name=fedprox", "algorithm.mu=1e400"],
            "config.algorithm.mu: must be a finite number of at least 0",
        ),
        (["algorithm.steps=3", "algorithm.epochs=2"], "config.algorithm.steps: 3 steps and 2 epochs per round are"),
        (["algorithm.epochs=2147483647"], "steps per client and round exceed the limit"),
        (["seed=2147483648"], "config.seed: must be a whole number from 0 to 2147483647"),
        (["seed=2147483647", "num_seeds=2"], "num_seeds: seeds run from 2147483647"),
        ([f"layout=sharded({10**30})"], "config.layout: cannot read"),
        (["layout=sharded(100000000)"], "config.layout: sharded(100000000) needs"),
        (["data.domains=true", "data.unseen=noisy, noisy"], "'noisy' is named 2 times"),
        (["model.width=1e9"], "config.model.width: 1e+09 times hidden of 4 is more than an array can have"),
        (["model.hidden=1000000000"], "memory: the states of the server and of one client take 300.0 GB"),
        (["algorithm.name=moon", "algorithm.buffer=1000000000"], "memory: the states of the server and of one client"),
        (["algorithm.batch_size=1000000000"], "memory: this run needs more than"),
        (["num_seeds=1000000000"], "memory: this run needs more than"),
        (
            ["aggregator.name=krum"],
            "aggregator 'krum': num_attackers=1 needs at least 4 clients per round, but the cohort has 3 clients.",
        ),
        (
            ["aggregator.name=trimmed_mean", "aggregator.before=nnm,nnm"],
            "config.aggregator.before: 'nnm' is named twice",
        ),
        (["aggregator.name=fltrust", "aggregator.root=99"], "aggregator: root: there is no client 99"),
        (["data.name=arrays", f"data.path=/{'x' * 300}"], "File name too long"),
    ],
)
def test_impossible_numbers_and_sizes_are_refused_in_one_line(refused, overrides, message):
    said = refused(*(f"--config.{override}" for override in overrides))
    assert message in said and len(said.splitlines()) == 1


def test_a_workdir_with_an_impossible_name_is_refused(refused, tmp_path):
    assert "File name too long" in refused(f"--workdir={tmp_path / ('x' * 300)}")


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        ((40, 4, 4), np.arange(40) + 2**32 + 1, "labels[0] is 4294967297"),
        ((40, 4, 4), np.arange(40) * 10**7, "labels go up to 390000000, for 40 examples"),
        ((10**15, 4, 4), np.arange(40), "it announces an array of shape (1000000000000000, 4, 4)"),
        ((2**40, 2**40), np.arange(40), "it announces an array of shape (1099511627776, 1099511627776)"),
    ],
)
def test_impossible_arrays_are_refused_in_one_line(refused, tmp_path, images, labels, message):
    path, image, member = tmp_path / "data.npz", np.zeros((40, 4, 4), np.uint8), io.BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": images})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("images.npy", member.getvalue() + image.tobytes())
    with zipfile.ZipFile(path, "a") as file, file.open("labels.npy", "w") as place:
        np.save(place, labels)
    said = refused("--config.data.name=arrays", f"--config.data.path={path}")
    assert message in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("size", [10**6, 10**30])
def test_images_resized_beyond_all_memory_are_refused(refused, folder, tmp_path, size):
    cache = f"--config.data.cache={tmp_path / 'cache'}"
    said = refused(*from_folder(folder, f"--config.data.size={size}", cache))
    assert "config.data.size: " in said and len(said.splitlines()) == 1


@pytest.mark.extended
def test_a_damaged_checkpoint_is_named_and_kept(tmp_path, capsys):
    config, workdir = tmp_path / "small.py", tmp_path / "run"
    config.write_text(FILE)
    arguments = [f"--config={config}", f"--workdir={workdir}"]
    assert train.main(arguments) == 0
    (workdir / "summary.json").unlink()
    state = workdir / "checkpoints" / "2" / "state"
    for path in state.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:9])
    capsys.readouterr()
    assert train.main(arguments) == 2
    message = capsys.readouterr().err
    assert f"{workdir / 'checkpoints' / '2'}: the checkpoint is damaged: the checksum of state/" in message
    assert "Delete it: the run resumes from checkpoint 1" in message
    assert state.exists() and not (workdir / "summary.json").exists()
