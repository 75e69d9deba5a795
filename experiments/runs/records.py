"""What a run leaves behind, as plain records: metric lines, a row per client, the summary."""

import csv
import io
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het import __version__, engine
from fedjax_het.data import Federation

from . import json_files

Json = dict[str, Any]
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


def flatten(record: Mapping[str, Any], separator: str = ".", prefix: str = "") -> Json:
    """{"algorithm.lam": 0.1, ...} from tables in tables."""
    found = {}
    for name, value in record.items():
        key = prefix + name
        found |= flatten(value, separator, key + separator) if isinstance(value, Mapping) else {key: value}
    return found


# ---- metrics.jsonl ---------------------------------------------------------------------------------------------------
def metric_records(round: int, seeds: Iterable[int], seconds: float, figures: Mapping[str, np.ndarray]) -> list[Json]:
    """A line for every seed."""
    return [
        {"round": round, "seed": seed, **{name: values[i].item() for name, values in figures.items()}}
        | {"seconds": seconds}
        for i, seed in enumerate(seeds)
    ]


class MetricLines:
    """metrics.jsonl: a line an evaluation and seed, only ever added to, except when a run resumes."""

    def __init__(self, path: Path):
        self.path, self._read = path, 0  # bytes that `read_on` has seen

    def add(self, lines: Iterable[Json]) -> None:
        json_files.append(self.path, "".join(json_files.to_json(line) + "\n" for line in lines))

    def read(self) -> list[Json]:
        """All whole lines; what a kill tore off is not one."""
        whole = self.path.read_text().rpartition("\n")[0] if self.path.exists() else ""
        return [json.loads(line) for line in whole.splitlines()]

    def read_on(self) -> list[Json]:
        """The whole lines behind those that this returned before."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        return [json.loads(line) for line in whole.splitlines()]

    def rewind(self, round: int) -> list[Json]:
        """Drop what was written after this round, and the torn line of a kill; what is left."""
        kept = [line for line in self.read() if line["round"] <= round]
        json_files.write(self.path, "".join(json_files.to_json(line) + "\n" for line in kept))
        return kept


# ---- per_client.csv, selected.jsonl, partition.json ------------------------------------------------------------------
_HEADER = ["seed", "client", "is_newcomer", "num_train", "num_valid", "num_test"]


def client_rows(evaluation: engine.Evaluation, federation: Federation, seeds: Iterable[int]) -> list[Json]:
    """For every seed and client, newcomers last, its numbers of examples and its figures; None where it has none."""
    rows = []
    scores = ["loss", "accuracy", *(evaluation.clients.overlap or {})]
    own = {"personal": evaluation.personal}
    if evaluation.personal_test is not None:
        own["personal_test"] = evaluation.personal_test
    names = [*_HEADER, *scores, *(f"{name}_{score}" for name in own for score in scores)]
    clients = federation.describe()
    for i, seed in enumerate(seeds):
        for position, client in enumerate(clients):
            if client["is_newcomer"]:
                figures = _figures(evaluation.newcomers, i, position - federation.num_clients)
                figures += [None] * len(scores) * len(own)
            else:
                figures = _figures(evaluation.clients, i, position)
                for part in own.values():
                    figures += _figures(part, i, position) if part else [None] * len(scores)
            counts = [client[name] for name in ("client", "is_newcomer", "train", "valid", "test")]
            rows.append(dict(zip(names, [seed, *counts, *figures], strict=True)))
    return rows


def per_client(evaluation: engine.Evaluation, federation: Federation, seeds: Iterable[int]) -> str:
    """CSV: `client_rows` after the last round; empty cells where there is no figure."""
    text, rows = io.StringIO(), client_rows(evaluation, federation, seeds)
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def selected_lines(round: int, seeds: Sequence[int], rows: Sequence[Json]) -> list[Json]:
    """A line each of these seeds, whose round is the best on validation examples so far: its clients' rows."""
    of = {seed: [row for row in rows if row["seed"] == seed] for seed in seeds}
    return [{"round": round, "seed": seed, "clients": clients} for seed, clients in of.items()]


def _figures(metrics: engine.Metrics, seed: int, client: int) -> list[float | None]:
    """Loss, accuracy and overlaps; None where there was no example."""
    scores = [metrics.loss, metrics.accuracy, *(metrics.overlap or {}).values()]
    is_measured = metrics.num_examples[seed, client] > 0
    return [float(score[seed, client]) if is_measured else None for score in scores]


def describe_partition(federation: Federation) -> Json:
    """Who has what, how much is held out of everyone and how, and the fingerprint of the whole division."""
    return {
        "fingerprint": federation.fingerprint,
        "test": None if federation.test is None else int(federation.test.count),
        "unseen": {name: int(rows.count) for name, rows in federation.unseen.items()},
        "fractions": federation.fractions._asdict(),
        "clients": federation.describe(),
    }


# ---- summary.json ----------------------------------------------------------------------------------------------------
# The first that was measured: of own models where clients have some.
_SELECTING = ("personal_valid/dice_mean", "personal_valid/accuracy_mean", "valid/dice_mean", "valid/accuracy_mean")


def final_figures(lines: list[Json]) -> dict[str, Json]:
    """{figure: {mean, std, seeds: [values]}} of the last round; std is the population's, null for one seed."""
    return _over_seeds([line for line in lines if line["round"] == lines[-1]["round"]])


def selected_figures(lines: list[Json]) -> Json | None:
    """The figures, as in `final`, of each seed's round that did best on the clients' validation examples; the first of
    equals. Test examples have no say in it. None where nobody has validation examples.
    """
    by = _selection_figure(lines)
    if by is None:
        return None
    best = {line["seed"]: line for line in improving_lines(lines)}
    chosen = [best[seed] for seed in sorted(best)]
    return {"by": by, "rounds": [line["round"] for line in chosen], "figures": _over_seeds(chosen)}


def improving_lines(lines: list[Json]) -> list[Json]:
    """The lines that were the best of their seed on validation examples when written; [] where nobody has any."""
    by, best = _selection_figure(lines), []
    highest: dict[int, float] = {}
    for line in lines if by else []:
        if line["seed"] not in highest or line[by] > highest[line["seed"]]:
            highest[line["seed"]] = line[by]
            best.append(line)
    return best


def _selection_figure(lines: list[Json]) -> str | None:
    """The name of the figure that rounds are selected by."""
    return next((name for name in _SELECTING if all(line.get(name) is not None for line in lines)), None)


def _over_seeds(lines: list[Json]) -> dict[str, Json]:
    figures = {}
    for name in lines[0].keys() - {"round", "seed", "seconds"}:
        values = np.array([line[name] for line in lines], dtype=float)
        std = values.std().item() if len(values) > 1 else None
        figures[name] = {"mean": values.mean().item(), "std": std, "seeds": values.tolist()}
    return {name: figures[name] for name in lines[0] if name in figures}


def summarize_run(lines: list[Json], facts: engine.RunCost, federation: Federation) -> Json:
    """The run in one record."""
    return {
        "rounds": lines[-1]["round"],
        "final": final_figures(lines),
        "selected": selected_figures(lines),
        "dropped_uploads": [line["num_dropped"] for line in lines if line["round"] == lines[-1]["round"]],
        "wall_seconds": lines[-1]["seconds"],
        "partition": federation.fingerprint,
        "facts": facts._asdict(),
        "versions": {"python": platform.python_version(), "fedjax-het": __version__}
        | {name: metadata.version(name) for name in _PACKAGES},
    }
