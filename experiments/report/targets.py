"""The table of what it took to reach a score: rounds, seconds, bytes, bits, and seconds on the virtual clock."""

from collections.abc import Callable, Sequence

from ..runs.results import RunResults
from ..runs.run_files import Json
from ..runs.tables import ColumnFormat, Table, Value, score_title
from . import costs
from .rows import Row, figure_names

_FIGURES = ("test/{}", "clients/{}_mean", "personal/{}_mean")
_TITLES = {
    "test": "on the test set",
    "clients": "of the server's model, mean of clients",
    "personal": "of own models",
}
_NOTE = (
    "The first evaluated round at which a seed's score is at least {target:.4g} %, {where}; nothing is known "
    "between evaluations. Means over the seeds that got there, whose number is in the first column. Bytes: of all "
    "clients, down and up; bits: what the stages of an uplink send. Seconds are those of the machine, evaluation "
    "included; the virtual clock counts what clients would take."
)


def make_table(rows: Sequence[Row], score: str, target: float) -> Table | None:
    """Tabulate what each row took to reach a score.

    Args:
        rows: the rows of one data set.
        score: "accuracy" or "dice".
        target: the score, between 0 and 1.

    Returns:
        The table; None where no such score was measured.
    """
    names = figure_names(rows)
    figure = next((name for each in _FIGURES if (name := each.format(score)) in names), None)
    if figure is None:
        return None
    reached = [[line for run in row.runs for line in _first_lines(run, figure, target)] for row in rows]
    columns = {name: column for name, column in _COLUMNS.items() if any(_has(each, column[1]) for each in reached)}
    body = []
    for row, lines in zip(rows, reached, strict=True):
        num_seeds = sum(len({line["seed"] for line in run.lines}) for run in row.runs)
        values = [_mean(lines, read) for _, read in columns.values()]
        body.append((row.label, [f"{len(lines)} of {num_seeds}", *values]))
    where = _TITLES[figure.partition("/")[0]]
    return Table(
        f"target_{100 * target:g}".replace(".", "_"),
        f"What {100 * target:.4g} % {score_title(score)} took",
        ["seeds", *columns],
        body,
        {name: form for name, (form, _) in columns.items()},
        _NOTE.format(target=100 * target, where=where),
    )


def _first_lines(run: RunResults, figure: str, target: float) -> list[Json]:
    """The first line of each seed that reaches the target, with the traffic up to it."""
    first: dict[int, Json] = {}
    for line in run.lines:
        value = line.get(figure)
        if value is not None and value >= target:
            sent = {"traffic": costs.count_traffic(run, line["round"])}
            if "traffic/bits_up" in line:
                sent["bits"] = costs.count_bits_up(run, line["round"])
            first.setdefault(line["seed"], line | sent)
    return list(first.values())


def _has(lines: Sequence[Json], read: Callable[[Json], float | None]) -> bool:
    return any(read(line) is not None for line in lines)


def _mean(lines: Sequence[Json], read: Callable[[Json], float | None]) -> Value | None:
    known = [value for line in lines if (value := read(line)) is not None]
    return Value.of(known) if known else None


_COLUMNS: dict[str, tuple[ColumnFormat, Callable[[Json], float | None]]] = {
    "rounds": (ColumnFormat(lambda value: f"{value:.4g}", min), lambda line: line["round"]),
    "seconds": (ColumnFormat(costs.format_seconds, min), lambda line: line["seconds"]),
    "traffic": (ColumnFormat(costs.format_bytes, min), lambda line: line["traffic"]),
    "bits sent": (ColumnFormat(lambda value: f"{value:.3g}", min), lambda line: line.get("bits")),
    "virtual seconds": (ColumnFormat(costs.format_seconds, min), lambda line: line.get("virtual_seconds")),
}
