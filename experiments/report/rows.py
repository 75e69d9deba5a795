"""Which runs stand in one row, and what a row is called."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..runs.records import flatten
from ..runs.run_directory import run_identity
from ..runs.setting_text import short
from .run_reader import RunData

_READERS = ("arrays", "folders")
_UNSEEN = "data.unseen"
_NAMES = ("algorithm.name", "data.name", "model.name")
_OF_WATCHING = ("diagnostics", "diagnose_every", "evaluate_every", "checkpoint_every", "personal_on_test")
_OF_PLACE = ("data.path", "data.cache")


class Row(NamedTuple):
    """A run; where every domain is left out in turn, the runs that differ in nothing but the domain."""

    label: str
    number: int  # of the row, and of its colour
    runs: list[RunData]

    @property
    def algorithm(self) -> str:
        return self.runs[0].settings["algorithm"]["name"]

    @property
    def first(self) -> RunData:
        """The run that stands for the row where one is enough: who has which data, what was diagnosed."""
        return self.runs[0]


def data_name(run: RunData) -> str:
    """What the data set is called: by its config, or as the file that a reader of any data was given."""
    data = run.settings["data"]
    if data["name"] in _READERS and data.get("path"):
        return data.get("title") or Path(data["path"]).stem
    return data.get("title") or data.get("builder") or data["name"]


def by_data(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """{data set: its rows}: figures of different data are no contest."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(data_name(row.first), []).append(row)
    return found


def left_out(run: RunData) -> str:
    return run.settings["data"].get("unseen", "")


def rows(runs: Sequence[RunData]) -> list[Row]:
    """Labels are the algorithm's name and the fewest settings that tell rows apart; for equal runs, their directory."""
    grouped: list[list[RunData]] = []
    for run in runs:
        of = next((group for group in grouped if _belongs(run, group)), None)
        if of is None:
            grouped.append([run])
        else:
            of.append(run)
    labels = _labels([_telling(group[0]) for group in grouped])
    for where in (lambda run: run.directory.name, lambda run: run.directory):
        twice = {label for label in labels if labels.count(label) > 1}
        labels = [f"{a} ({where(group[0])})" if a in twice else a for a, group in zip(labels, grouped, strict=True)]
    return [Row(label, i, group) for i, (label, group) in enumerate(zip(labels, grouped, strict=True))]


def _belongs(run: RunData, group: Sequence[RunData]) -> bool:
    others = {left_out(other) for other in group}
    return left_out(run) not in others and "" not in others | {left_out(run)} and _same(run, group[0], (_UNSEEN,))


def _same(a: RunData, b: RunData, but: Iterable[str] = ()) -> bool:
    one, other = _telling(a), _telling(b)
    return all(one.get(key) == other.get(key) for key in one.keys() | other.keys() if key not in but)


def _telling(run: RunData) -> dict[str, Any]:
    """The settings that make it another experiment."""
    settings = flatten(run_identity(run.settings)) | {"data.name": data_name(run)}
    return {key: value for key, value in settings.items() if key not in _OF_WATCHING + _OF_PLACE}


def _labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    labels = [each["algorithm.name"] for each in settings]
    keys = [*_NAMES[1:], *dict.fromkeys(key for each in settings for key in each)]
    for key in keys:
        for label in {label for label in labels if labels.count(label) > 1}:
            alike = [i for i, other in enumerate(labels) if other == label]
            if len({repr(settings[i].get(key)) for i in alike}) > 1:
                for i in alike:
                    labels[i] += f" {_said(key, settings[i].get(key))}"
    return labels


def _said(key: str, value: Any) -> str:
    """Names speak for themselves: "pacs", but "lam=0.1"."""
    return str(value) if key in _NAMES else f"{short(key)}={value}"


def baseline(row: Row, rows: Sequence[Row], algorithm: str) -> Row | None:
    """The row of this algorithm that a row is to be compared with: all that is not the algorithm's own is the same; of
    several, the one that shares most of its options.
    """

    def own(each: Row) -> dict[str, Any]:
        return {key: value for key, value in _telling(each.first).items() if key.startswith("algorithm.")}

    def is_comparable(each: Row) -> bool:
        return _same(row.first, each.first, {_UNSEEN, "num_seeds", *own(row), *own(each)})

    def agreement(each: Row) -> int:
        return sum(own(row).get(key) == value for key, value in own(each).items())

    found = [each for each in rows if each.algorithm == algorithm != row.algorithm and is_comparable(each)]
    return max(found, key=agreement, default=None)
