"""Tables of the costs of runs: of a whole run, and of reaching a score."""

from collections.abc import Callable, Mapping, Sequence

from fedjax_het.cli.report.rows import Row, figure_names, find_score
from fedjax_het.cli.runs.data_usage import GROUPS, find_figures
from fedjax_het.cli.runs.results import RunResults
from fedjax_het.cli.runs.run_files import Json
from fedjax_het.cli.runs.setting_text import format_bytes
from fedjax_het.cli.runs.tables import ColumnFormat, Table, Value, score_title

_NOTE = (
    "Seconds: the whole run with all its seeds, including evaluation but not compilation. Seconds per round: from the "
    "first to the last evaluation, divided by the rounds between them. Memory: per device, computed before the run. "
    "Down, up: bytes that a client receives and sends per round. Traffic: all clients of one seed over the run so far. "
    "kB = 1000 B. Runs may be from different machines, see the settings."
)
_TARGET_GROUPS = ("test", "clients", "personal")
"""The groups, of which the first that was measured has to reach a score."""
_TARGET_NOTE = (
    "The first evaluated round at which a seed's score is at least {target:.4g} % ({where}). Means over "
    "the seeds that reached it, whose number is in the first column. Traffic: all clients, down and up. Bits sent: "
    "through the uplink. Seconds: time of the machine, including evaluation. Virtual seconds: simulated time of the "
    "clients."
)


# ---- numbers ---------------------------------------------------------------------------------------------------------
def format_seconds(value: float) -> str:
    """Format with three digits, in milliseconds or seconds; in hours and minutes from ten minutes on."""
    if value < 1:
        return f"{1000 * value:.3g} ms"
    if value < 600:
        return f"{value:.3g} s"
    return f"{value // 3600:.0f} h {value % 3600 // 60:.0f} min"


def count_traffic(line: Json) -> float:
    """Count the bytes of all clients up to an evaluation, down and up."""
    return line["traffic/down"] + line["traffic/up"]


def count_bits_up(line: Json) -> float:
    """Count the bits that all clients have sent up to an evaluation."""
    return line.get("traffic/bits_up", 8 * line["traffic/up"])


def _seconds_per_round(run: RunResults, line: Json) -> float:
    """Measure from the first to the last evaluation; with a single one, from the start to it."""
    rounds, seconds = run.lines[0]["round"], run.lines[0]["seconds"]
    if rounds == line["round"]:
        rounds = seconds = 0
    return (line["seconds"] - seconds) / (line["round"] - rounds)


# ---- tables ----------------------------------------------------------------------------------------------------------
_Line = tuple[RunResults, Json]  # of one seed
_Column = tuple[ColumnFormat, Callable[[RunResults, Json], float | None]]


def _read_fact(name: str) -> Callable[[RunResults, Json], float | None]:
    return lambda run, line: run.summary["facts"][name] if run.summary else None


_BYTES, _SECONDS = ColumnFormat(format_bytes, min), ColumnFormat(format_seconds, min)
_COUNT, _UNRANKED = ColumnFormat(lambda value: f"{value:,.0f}"), ColumnFormat(format_seconds)
_DIGITS = ColumnFormat(lambda value: f"{value:.3g}", min)
_RUN_COLUMNS: Mapping[str, _Column] = {
    "rounds": (_COUNT, lambda run, line: line["round"]),
    "parameters": (_COUNT, _read_fact("num_parameters")),
    "seconds": (_UNRANKED, lambda run, line: line["seconds"]),
    "seconds per round": (_SECONDS, _seconds_per_round),
    "compilation": (_UNRANKED, _read_fact("compile_seconds")),
    "memory held": (_BYTES, lambda run, _: sum(run.summary["facts"]["held_bytes"].values()) if run.summary else None),
    "peak memory": (_BYTES, _read_fact("peak_bytes")),
    "down per client": (_BYTES, _read_fact("bytes_down")),
    "up per client": (_BYTES, _read_fact("bytes_up")),
    "traffic": (ColumnFormat(format_bytes), lambda run, line: count_traffic(line)),
    "epsilon": (_DIGITS, lambda run, line: line.get("privacy/epsilon")),
    "dropped uploads": (_COUNT, lambda run, line: sum(run.summary["dropped_uploads"]) if run.summary else None),
}
_TARGET_COLUMNS: Mapping[str, _Column] = {
    "rounds": (ColumnFormat(lambda value: f"{value:.4g}", min), lambda run, line: line["round"]),
    "seconds": (_SECONDS, lambda run, line: line["seconds"]),
    "traffic": (_BYTES, lambda run, line: count_traffic(line)),
    "bits sent": (_DIGITS, lambda run, line: line.get("traffic/bits_up")),
    "virtual seconds": (_SECONDS, lambda run, line: line.get("virtual_seconds")),
}


def _read_columns(columns: Mapping[str, _Column], lines: Sequence[Sequence[_Line]]) -> dict[str, list[Value | None]]:
    """Return {column: the value of each row over its lines}."""
    read = {name: [[column(*line) for line in own] for own in lines] for name, (_, column) in columns.items()}
    known = {name: [[x for x in own if x is not None] for own in values] for name, values in read.items()}
    return {name: [Value.of(own) if own else None for own in values] for name, values in known.items() if any(values)}


def make_table(rows: Sequence[Row]) -> Table:
    """Tabulate the means over the runs of each row."""
    lines = [[(run, line) for run in row.runs for line in run.lines if line["round"] == run.done] for row in rows]
    columns = {
        name: [value and Value(value.mean) for value in values]
        for name, values in _read_columns(_RUN_COLUMNS, lines).items()
    }
    formats = {name: form for name, (form, _) in _RUN_COLUMNS.items()}
    return Table.from_columns("costs", "Time, memory, traffic", [row.label for row in rows], columns, formats, _NOTE)


def make_target_table(rows: Sequence[Row], target: float) -> Table | None:
    """Tabulate the cost of each row of a data set to reach an accuracy or Dice in 0..1; None if it is not measured."""
    score = find_score(rows)
    groups = {name.partition("/")[0]: name for name, _, _ in find_figures(figure_names(rows), score)}
    if not (measured := [group for group in _TARGET_GROUPS if group in groups]):
        return None
    figure, where = groups[measured[0]], GROUPS[measured[0]].description
    lines = [[line for run in row.runs for line in _first_lines(run, figure, target)] for row in rows]
    counts = [sum(len({line["seed"] for line in run.lines}) for run in row.runs) for row in rows]
    seeds = [f"{len(own)} of {count}" for own, count in zip(lines, counts, strict=True)]
    name, title = f"target_{100 * target:g}".replace(".", "_"), f"Cost of {100 * target:.4g} % {score_title(score)}"
    note = _TARGET_NOTE.format(target=100 * target, where=where)
    formats = {name: form for name, (form, _) in _TARGET_COLUMNS.items()}
    columns = {"seeds": seeds, **_read_columns(_TARGET_COLUMNS, lines)}
    return Table.from_columns(name, title, [row.label for row in rows], columns, formats, note)


def _first_lines(run: RunResults, figure: str, target: float) -> list[_Line]:
    """The first line of each seed that reaches the target."""
    first: dict[int, Json] = {}
    for line in run.lines:
        if (value := line.get(figure)) is not None and value >= target:
            first.setdefault(line["seed"], line)
    return [(run, line) for line in first.values()]
