"""Records that a run writes: metric lines, one row per client, the partition, the summary."""

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het import __version__, engine
from fedjax_het._internal.regular_files import open_regular
from fedjax_het.cli.runs import json_files
from fedjax_het.cli.runs.phase_records import describe_phases, summarize_phases
from fedjax_het.cli.runs.run_files import Json, read_lines
from fedjax_het.data import Federation
from fedjax_het.engine import MAIN_SCORES

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")


def flatten(record: Mapping[str, Any], separator: str = ".", prefix: str = "") -> Json:
    """Flatten nested tables: {"algorithm": {"lam": 0.1}} -> {"algorithm.lam": 0.1}."""
    flat = {}
    for name, value in record.items():
        key = prefix + name
        flat |= flatten(value, separator, key + separator) if isinstance(value, Mapping) else {key: value}
    return flat


# ---- metrics.jsonl ---------------------------------------------------------------------------------------------------
def metric_records(round: int, seeds: Iterable[int], seconds: float, figures: Mapping[str, np.ndarray]) -> list[Json]:
    """Make one line per seed."""
    return [
        {"round": round, "seed": seed, **{name: values[i].item() for name, values in figures.items()}}
        | {"seconds": seconds}
        for i, seed in enumerate(seeds)
    ]


class MetricLines:
    """A .jsonl file of a run, one line per round and seed, to which lines are only added except when a run resumes."""

    def __init__(self, path: Path):
        self.path, self._num_read = path, 0  # bytes that `read_new` has read

    def add(self, lines: Iterable[Json]) -> None:
        json_files.append(self.path, "".join(json_files.to_json(line) + "\n" for line in lines))

    def read(self) -> list[Json]:
        """Read all complete lines; see `run_files.read_lines`."""
        return read_lines(self.path)[0]

    def read_new(self) -> list[Json]:
        """Read the complete lines after those that this returned before."""
        if not self.path.exists():
            return []
        with open_regular(self.path) as file:
            file.seek(self._num_read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._num_read += len(whole) + len(end)
        return [json.loads(line) for line in whole.splitlines()]

    def rewind(self, round: int, every: int = 1) -> list[Json]:
        """Drop an incomplete last line, later lines and those beside multiples of `every`; return what is left."""
        kept = [line for line in self.read() if line["round"] <= round and line["round"] % every == 0]
        json_files.write(self.path, "".join(json_files.to_json(line) + "\n" for line in kept))
        return kept


# ---- per_client.csv, selected.jsonl, partition.json ------------------------------------------------------------------
_HEADER = ["seed", "client", "is_newcomer", "num_train", "num_valid", "num_test"]


def client_rows(evaluation: engine.Evaluation, federation: Federation, seeds: Iterable[int]) -> list[Json]:
    """Make one row per seed and client, newcomers last: numbers of examples and figures, None where it has none."""
    rows = []
    scores = ["loss", *_scores_of(evaluation.clients)]
    own = {"personal": evaluation.personal}
    if evaluation.personal_test is not None:
        own["personal_test"] = evaluation.personal_test
    header, models = _HEADER, evaluation.personal.model if evaluation.personal else None
    if models is not None:
        header = [*_HEADER, "model"]
    names = [*header, *scores, *(f"{name}_{score}" for name in own for score in scores)]
    clients = federation.describe()
    for i, seed in enumerate(seeds):
        for position, client in enumerate(clients):
            if client["is_newcomer"]:
                position, parts = position - federation.num_clients, [evaluation.newcomers, *[None] * len(own)]
            else:
                parts = [evaluation.clients, *own.values()]
            figures = [value for part in parts for value in _figures(part, i, position, len(scores))]
            counts = [client[name] for name in ("client", "is_newcomer", "train", "valid", "test")]
            if models is not None:
                counts.append(None if client["is_newcomer"] else int(models[i, position]))
            rows.append(dict(zip(names, [seed, *counts, *figures], strict=True)))
    return rows


def client_csv(
    evaluation: engine.Evaluation, federation: Federation, seeds: Sequence[int], columns: Mapping[str, np.ndarray]
) -> str:
    """Write `client_rows` as CSV, with further columns [seeds, clients]; empty cells where there is no figure."""
    rows = client_rows(evaluation, federation, seeds)
    for name, values in columns.items():
        for place, row in enumerate(rows):
            seed, client = divmod(place, len(rows) // len(seeds))
            row[name] = float(values[seed, client]) if client < values.shape[1] else None
    return json_files.to_csv(rows[0], (row.values() for row in rows))


def _scores_of(metrics: engine.Metrics) -> dict[str, Any]:
    """Return accuracy, where the labels have one, overlaps and requested metrics."""
    accuracy = {} if metrics.accuracy is None else {"accuracy": metrics.accuracy}
    return accuracy | (metrics.overlap or {}) | (metrics.requested or {})


def _figures(metrics: engine.Metrics | None, seed: int, client: int, num_scores: int) -> list[float | None]:
    """Return the loss and `_scores_of`; None where there is no example or nothing was measured."""
    if metrics is None or not metrics.num_examples[seed, client]:
        return [None] * num_scores
    scores = [float(score[seed, client]) for score in _scores_of(metrics).values()]
    return [float(metrics.loss[seed, client]), *(None if np.isnan(value) else value for value in scores)]


def describe_partition(federation: Federation) -> Json:
    """Describe each client's examples, the examples held out of all clients, and the fingerprint of the data."""
    return {
        "fingerprint": federation.fingerprint,
        "test": None if federation.test is None else int(federation.test.count),
        "unseen": {name: int(rows.count) for name, rows in federation.unseen.items()},
        "fractions": federation.fractions._asdict(),
        "clients": federation.describe(),
        **({"phases": describe_phases(federation.phases)} if federation.phases else {}),
    }


# ---- summary.json ----------------------------------------------------------------------------------------------------
# Rounds are selected by the first of these that was measured: of own models where clients have them.
SELECTION_FIGURES = tuple(f"{group}/{score}_mean" for group in ("personal_valid", "valid") for score in MAIN_SCORES)


def final_figures(lines: list[Json]) -> dict[str, Json]:
    """Return {figure: {mean, std, seeds: [values]}} of the last round; std is the population's, null for one seed."""
    return _summarize_seeds([line for line in lines if line["round"] == lines[-1]["round"]])


def selected_figures(lines: list[Json]) -> Json | None:
    """Return the figures, as in `final_figures`, of the round that is selected for each seed.

    That is the round with the best score on the clients' validation examples, the first of equals; test examples have
    no influence. None where no client has validation examples.
    """
    figure = _selection_figure(lines)
    if figure is None:
        return None
    best = {line["seed"]: line for line in improving_lines(lines)}
    chosen = [best[seed] for seed in sorted(best)]
    return {"by": figure, "rounds": [line["round"] for line in chosen], "figures": _summarize_seeds(chosen)}


def improving_lines(lines: list[Json]) -> list[Json]:
    """Return the lines that were the best of their seed on validation examples when written; [] without such."""
    figure, best = _selection_figure(lines), []
    if figure is None:
        return []
    highest: dict[int, float] = {}
    for line in lines:
        if line["seed"] not in highest or line[figure] > highest[line["seed"]]:
            highest[line["seed"]] = line[figure]
            best.append(line)
    return best


def selection_line(line: Json, *also: str) -> Json:
    """Reduce a line to what `improving_lines` reads, with None for a score that is not finite, as in the file.

    Args:
        line: a line of metrics.jsonl.
        *also: other figures to keep.
    """
    scores = {name: line[name] for name in (*SELECTION_FIGURES, *also) if name in line}
    finite = {name: value if value is not None and np.isfinite(value) else None for name, value in scores.items()}
    return {"round": line["round"], "seed": line["seed"], **finite}


def find_end(lines: list[Json], stop: engine.EarlyStopping, num_seeds: int, evaluate_every: int) -> int | None:
    """Find the round at which early stopping ends a run; None if it goes on.

    Args:
        lines: lines of metrics.jsonl, or their `selection_line`.
        stop: the rule.
        num_seeds: the number of lines of an evaluation.
        evaluate_every: the interval; a last round beside it does not count, as more rounds would not evaluate it.
    """
    stop = stop.name_in(lines[0]) if lines else stop
    evaluated: dict[int, list[float | None]] = {}
    for line in lines:
        evaluated.setdefault(line["round"], []).append(line[stop.metric])
    whole = {r: x for r, x in evaluated.items() if len(x) == num_seeds and r % evaluate_every == 0}
    end = stop.find_end([np.array(values, np.float64) for values in whole.values()])
    return None if end is None else list(whole)[end]


def _selection_figure(lines: list[Json]) -> str | None:
    """Return the name of the figure that rounds are selected by."""
    return next((name for name in SELECTION_FIGURES if all(line.get(name) is not None for line in lines)), None)


def _summarize_seeds(lines: list[Json]) -> dict[str, Json]:
    figures = {}
    for name in lines[0].keys() - {"round", "seed", "seconds"}:
        values = np.array([line[name] for line in lines], dtype=float)
        std = values.std().item() if len(values) > 1 else None
        figures[name] = {"mean": values.mean().item(), "std": std, "seeds": values.tolist()}
    return {name: figures[name] for name in lines[0] if name in figures}


def summarize_run(lines: list[Json], facts: engine.RunCost, federation: Federation) -> Json:
    """Make the record of the whole run."""
    return {
        "rounds": lines[-1]["round"],
        "final": final_figures(lines),
        "selected": selected_figures(lines),
        **_summarize_phases(lines, federation),
        "dropped_uploads": [line["num_dropped"] for line in lines if line["round"] == lines[-1]["round"]],
        "wall_seconds": lines[-1]["seconds"],
        "partition": federation.fingerprint,
        "facts": facts._asdict(),
        "versions": {"python": platform.python_version(), "fedjax-het": __version__}
        | {name: metadata.version(name) for name in _PACKAGES},
    }


def _summarize_phases(lines: list[Json], federation: Federation) -> Json:
    """{"phases": the statistics of phases} where the data of clients change with the round, else {}."""
    if federation.phases is None:
        return {}
    return {"phases": summarize_phases(describe_phases(federation.phases), lines, federation.num_classes)}
