"""Run directories written by hand, as fedjax_het.cli.train leaves them."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedjax_het.cli.runs.results import RunResults

CLIENTS = ("a", "b", "c")
CLASSES = ("cat", "dog")
FACTS = {
    "num_clients": 3,
    "cohort_size": 2,
    "num_parameters": 100,
    "steps_per_client": [1, 2],
    "bytes_down": 400,
    "bytes_up": 500,
    "compile_seconds": 1.5,
    "held_bytes": {"server's state": 1000, "examples": 2000},
    "peak_bytes": 5000,
}


def settings(algorithm: str = "fedavg", **changed) -> dict:
    """`changed` by dotted keys with __ for the dot: data__unseen="photo"."""
    found = {
        "algorithm": {"name": algorithm, "learning_rate": 0.1},
        "model": {"name": "mlp"},
        "data": {"name": "digits", "unseen": "", "partition": {"name": "dirichlet", "alpha": 0.1}},
        "rounds": 10,
        "cohort_size": 2,
        "seed": 0,
        "num_seeds": 2,
    }
    for key, value in changed.items():
        table, _, name = key.rpartition("__")
        (found[table] if table else found)[name] = value
    return found


def write_run(
    folder: Path,
    algorithm: str = "fedavg",
    finals: Sequence[float] = (0.5, 0.7),
    is_finished: bool = True,
    valid: Mapping[int, float] | None = None,
    clients: Mapping[str, Sequence[float]] | None = None,
    **changed,
) -> Path:
    """Evaluated at rounds 5 and 10; a seed's accuracy on the test set is half its final one at round 5.

    valid: {round: accuracy on validation examples}. clients: {client: a score a seed}.
    """
    folder.mkdir(parents=True)
    write_json(folder / "config.json", settings(algorithm, **{"num_seeds": len(finals)} | changed))
    write_json(folder / "resolved.json", {"layout": "chunked(1)", "devices": "1 x cpu"})
    lines = [metric_line(round, seed, final, valid) for round in (5, 10) for seed, final in enumerate(finals)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    described = [
        {"client": name, "is_newcomer": False, "train": 9, "valid": 0, "test": 4, "classes": {"cat": i, "dog": 9 - i}}
        for i, name in enumerate(CLIENTS)
    ]
    write_json(folder / "partition.json", make_partition(described))
    if is_finished:
        write_client_csv(folder / "per_client.csv", clients or dict.fromkeys(CLIENTS, finals))
        versions = {"python": "3.11", "jax": "0.10.2"}
        write_json(
            folder / "summary.json",
            {"final": {}, "rounds": 10, "facts": FACTS, "versions": versions, "dropped_uploads": [0]},
        )
    return folder


def make_partition(clients: Sequence[Mapping]) -> dict:
    """The record of partition.json, of data whose own splits are held out."""
    fractions = dict.fromkeys(("test", "client_test", "client_valid"))
    return {"fingerprint": "f1", "clients": clients, "test": 4, "unseen": {}, "fractions": fractions}


def metric_line(round: int, seed: int, final: float, valid: Mapping[int, float] | None = None) -> dict:
    figures = {"train/loss": 1.0 / round, "num_reporting": 2, "num_dropped": 0}
    figures |= {"test/loss": 2.0 / round, "test/accuracy": final * round / 10}
    figures |= {
        f"clients/accuracy_{name}": final
        for name in ("mean", "weighted", "std", "worst10", "min", "max", "jain", "gini")
    }
    figures |= {"traffic/down": 800 * round, "traffic/up": 1000 * round}
    figures |= {"valid/accuracy_mean": valid[round]} if valid else {}
    return {"round": round, "seed": seed, **figures, "seconds": 2.0 * round}


def write_client_csv(path: Path, clients: Mapping[str, Sequence[float]]) -> None:
    names = ["seed", "client", "is_newcomer", "num_train", "num_valid", "num_test", "loss", "accuracy"]
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*names, "personal_loss", "personal_accuracy"])
        for client, scores in clients.items():
            rows.writerows([seed, client, False, 9, 0, 4, 0.3, score, "", ""] for seed, score in enumerate(scores))


def write_images(folder: Path, num_clients: int = 3) -> None:
    """Write images of both kinds for the last of `snapshots`, of its first seed; c's second image is missing."""
    lines = [json.loads(line) for line in (folder / "diagnostics.jsonl").read_text().splitlines()]
    last = next(line for line in lines if line["round"] == lines[-1]["round"])
    last["pictures"] = "snapshots/round.npz"
    images = np.random.default_rng(0).random((num_clients, 2, 6, 5, 1))
    masks = np.zeros((num_clients, 2, 6, 5), np.uint8)
    masks[:, :, 1:4, 1:4] = 1
    is_image = np.array([[True, True], [True, False], [True, True]])[:num_clients]
    arrays = {"images": images, "true": masks, "predicted": 1 - masks, "is_image": is_image}
    normal = {"images": images, "normalised": 1 - images, "is_image": is_image}
    (folder / "snapshots").mkdir()
    named = {f"contours/{name}": values for name, values in arrays.items()}
    np.savez(folder / "snapshots/round.npz", **named, **{f"normalisation/{name}": x for name, x in normal.items()})
    (folder / "diagnostics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_snapshots(folder: Path, rounds: Sequence[int] = (0, 5), seeds: Sequence[int] = (0, 1)) -> Path:
    """Clients a and c in the cohort, the third of it absent."""
    cohort = {"ids": [0, 2, 1], "is_present": [True, True, False]}
    steps = [-1.0, 0.0, 1.0]
    lines = [
        {
            "round": round,
            "seed": seed,
            "cohort": cohort,
            "conflict": {
                "mean_cosine": 0.1 * round + seed,
                "agreement": [1.0, 2.0, 0.0],
                "cosines": [[1.0, -0.5, 0.0], [-0.5, 1.0, 0.0], [0.0, 0.0, 0.0]],
            },
            "classes": {"losses": [[0.1, None], [0.3, 0.4], [0.0, 0.0]]},
            "spectrum": {"eigenvalues": [3.0, 1.0, 0.0], "num_axes": [1, 1, 2]},
            "landscape": {"clients": [[steps] * 3] * 3, "federation": [steps] * 3, "steps": steps},
            "seconds": 0.1,
        }
        for round in rounds
        for seed in seeds
    ]
    (folder / "diagnostics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value))


def read_run(directory: Path):
    return RunResults(directory).load()
