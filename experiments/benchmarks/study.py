"""Benchmark of a study: python -m experiments.benchmarks.study --data=fashion_mnist.npz --network=mlp

Times `fedjax-het study` on Fashion-MNIST as a command, without kept programs, and as many trials in PyTorch, one
process per core: the same clients, cohorts, epochs and evaluations. PyTorch trains every trial by FedAvg, whose steps
are the cheapest, so its time is a lower bound. Both read their data from files that are not compressed.
Exit status: 0 = done, 1 = a program failed, 2 = an input error, found before anything ran.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het import participation
from fedjax_het._internal.keys import make_key
from fedjax_het.cli import module_command
from fedjax_het.cli.configuration import build_data, config_files, settings
from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.distributed import layouts
from fedjax_het.cli.runs import json_files
from fedjax_het.data import Federation
from fedjax_het.errors import InputError

from .peers.process import make_environment
from .rounds import check_json_path

METHODS = "fedavg,fedprox,scaffold,fedld,fedmgc,fedcm,feddyn,moon"
NETWORKS: Mapping[str, dict[str, str]] = {
    "mlp": {"model.name": "mlp", "model.hidden": "(64,)"},
    "cnn": {"model.name": "cnn", "model.channels": "(8, 16)", "model.kernel": "5", "model.hidden": "(64,)"},
}
COMMON = {
    "data.partition.alpha": "0.1",
    "data.valid_fraction": "0.1",
    "data.client_test_fraction": "0",
    "checkpoint_every": "0",
    "layout": "chunked(1)",
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.study", allow_abbrev=False)
    parser.add_argument("--data", type=Path, required=True, help="fashion_mnist.npz")
    parser.add_argument("--network", choices=NETWORKS, default="mlp")
    parser.add_argument("--methods", default=METHODS, help="comma-separated (default %(default)s)")
    parser.add_argument("--trials", type=int, default=8, help="of each method (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="of each selected trial (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=50, help="of each run (default %(default)s)")
    parser.add_argument("--python", default=sys.executable, help="the interpreter with PyTorch")
    parser.add_argument("--json", type=Path, help="write the record to this file")
    flags = parser.parse_args(argv)
    if not flags.data.is_file():
        raise InputError(f"--data={flags.data}: there is no such file. Give the path of fashion_mnist.npz.")
    if flags.json is not None:
        check_json_path(flags.json)
    return flags


def time_ours(flags: argparse.Namespace, overrides: Mapping[str, str], folder: Path) -> float:
    """Seconds of the study as a command."""
    arguments = [f"--{name}={getattr(flags, name)}" for name in ("methods", "trials", "seeds")]
    arguments += [f"--config.{key}={text}" for key, text in overrides.items()]
    arguments += ["--config=fashion_mnist", f"--jobs={layouts.count_cores()}", f"--workdir={folder / 'study'}"]
    return _time([*module_command("fedjax_het.cli", "study"), *arguments], folder)


def time_torch(flags: argparse.Namespace, overrides: Mapping[str, str], folder: Path) -> float:
    """Seconds of as many trials in PyTorch."""
    complete, _ = settings.complete_settings(
        config_files.load_config(config_files.find_config("fashion_mnist")), overrides
    )
    federation = build_data.build_federation(complete["data"])[1]
    model, num_methods = complete["model"], flags.methods.count(",") + 1
    study = {
        "cores": layouts.count_cores(),
        "batch_size": complete["algorithm"]["batch_size"],
        "channels": model.get("channels", ()),
        "kernel": model.get("kernel", 0),
        "hidden": model["hidden"],
        "learning_rates": np.geomspace(1e-3, 0.3, num_methods * (flags.trials + flags.seeds)),
    }
    json_files.write(folder / "study.json", json_files.to_json(study))
    arrays = _arrays(federation, complete["cohort_size"], flags.rounds)
    np.savez(folder / "study.npz", allow_pickle=False, **arrays)
    names = [str(folder / name) for name in ("study.json", "study.npz")]
    command = module_command("experiments.benchmarks.peers.torch_study", *names, python=flags.python)
    return _time(command, folder)


def _arrays(federation: Federation, cohort_size: int, rounds: int) -> dict[str, np.ndarray]:
    data, test, rule = federation.data, federation.test, participation.uniform(cohort_size)
    assert test is not None  # Fashion-MNIST has one
    cohorts = [rule.draw(make_key(round), federation.num_clients, round)[0] for round in range(rounds)]
    return {
        "inputs": np.asarray(data.examples.inputs).squeeze(-1),
        "labels": np.asarray(data.examples.labels),
        "train": np.asarray(data.train.index),
        "train_count": np.asarray(data.train.count),
        "valid": np.asarray(data.valid.index),
        "valid_count": np.asarray(data.valid.count),
        "test": np.asarray(test.index).ravel(),
        "cohorts": np.stack(cohorts),
    }


def _time(command: Sequence[str], folder: Path) -> float:
    """Seconds of a command. Raises CalledProcessError if it fails; its output is then printed."""
    environment = make_environment(folder)
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout[-4000:], file=sys.stderr)
    done.check_returncode()
    return time.perf_counter() - start


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    flags = parse(argv)
    overrides = COMMON | NETWORKS[flags.network]
    overrides |= {"rounds": str(flags.rounds), "evaluate_every": str(flags.rounds)}
    given = "network", "methods", "trials", "seeds", "rounds"
    record: dict[str, Any] = {name: getattr(flags, name) for name in given}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "data.npz")
        with np.load(flags.data) as arrays:
            np.savez(copy, allow_pickle=False, **arrays)
        overrides["data.path"] = str(copy)
        for name, measure in {"fedjax_het": time_ours, "torch": time_torch}.items():
            try:
                record[name] = measure(flags, overrides, Path(folder))
            except subprocess.CalledProcessError as error:
                print(f"error: {name} ended with status {error.returncode}", file=sys.stderr)
                return 1
            print(f"{name}: {record[name]:.1f} s", flush=True)
    print(f"PyTorch takes {record['torch'] / record['fedjax_het']:.2f} times as long")
    if flags.json:
        json_files.write(flags.json, json_files.to_json(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
