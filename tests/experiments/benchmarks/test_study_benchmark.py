"""The benchmark of a study: a tiny one from beginning to end, and its errors."""

import importlib.util
import json

import numpy as np
import pytest

from experiments.benchmarks import study


@pytest.fixture
def images(tmp_path):
    """A file in the format of Fashion-MNIST."""
    rng, path = np.random.default_rng(0), tmp_path / "fashion_mnist.npz"
    names = {"train": 1500, "test": 50}
    arrays = {f"{name}_images": rng.integers(0, 256, (count, 28, 28), np.uint8) for name, count in names.items()}
    labels = {f"{name}_labels": rng.integers(0, 10, count) for name, count in names.items()}
    np.savez(path, allow_pickle=False, **arrays, **labels)
    return path


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize("network", study.NETWORKS)
def test_both_programs_are_timed(network, images, tmp_path, capsys):
    sizes = ["--methods=fedavg", "--trials=2", "--seeds=2", "--rounds=2", f"--network={network}"]
    assert study.main([f"--data={images}", f"--json={tmp_path / 'study.json'}", *sizes]) == 0
    record = json.loads((tmp_path / "study.json").read_text())
    assert record["fedjax_het"] > 0 and record["torch"] > 0 and record["trials"] == 2
    assert "PyTorch takes" in capsys.readouterr().out


@pytest.mark.extended
def test_a_program_that_fails_ends_the_command_with_its_output(images, capfd):
    sizes = ["--methods=fedavg,nothing", "--trials=1", "--seeds=1", "--rounds=1"]
    assert study.main([f"--data={images}", *sizes]) == 1
    error = capfd.readouterr().err
    assert "there is no algorithm 'nothing'" in error and "fedjax_het ended with status 2" in error
