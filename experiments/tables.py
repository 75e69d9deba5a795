"""Tables of results beside the values that a paper prints, as Markdown and CSV."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from fedjax_het.cli.configuration import calls
from fedjax_het.cli.runs import data_usage, json_files
from fedjax_het.cli.runs.run_directory import run_identity
from fedjax_het.errors import InputError

from .spec import PRETRAINED, Entry, Experiment, Runs, Scale, Settings

_MARGIN = 5.0  # per cent below the reference, for which a reason should be given


def to_markdown(
    experiment: Experiment,
    scale: str,
    entries: Sequence[Entry],
    common: Settings = MappingProxyType({}),
    failed: Mapping[str, str] = MappingProxyType({}),
    runs: Runs = MappingProxyType({}),
) -> str:
    """Write one table per measure, what the runs are measured on, what was reduced and what failed, and the caveats.

    Args:
        experiment: the table or figure.
        scale: the name of the scale.
        entries: the results.
        common: the user's settings.
        failed: {name: error} of the runs that failed.
        runs: the finished runs.
    """
    parts = [f"# {experiment.title}\n"]
    for measure in experiment.measures:
        measured = [entry for entry in entries if entry.measure == measure]
        parts.append(tabulate_measure(measure, measured))
        if experiment.reference:
            lower = list_lower(experiment.reference, measured)
            texts = ", ".join(f"{entry.row} ({entry.column}: {gap:.1f})" for entry, gap in lower)
            parts.append(f"More than {_MARGIN:g} points below {experiment.reference}: {texts or 'none'}.\n")
    parts += [f"{text}\n" for text in [_describe_data(runs)] if text]
    if failed:
        parts.append("Failed:\n\n" + "".join(f"- {name}: {status}\n" for name, status in failed.items()))
    parts.append(_describe_setting(experiment.scales[scale], common, is_reduced="paper" in experiment.scales))
    if experiment.caveats:
        is_published = "paper" not in experiment.scales or not experiment.scales[scale].reduction
        about = "Caveats" if is_published else "Caveats of the paper, and the choices made at --scale=paper"
        parts.append(f"{about}:\n\n" + "".join(f"- {caveat}\n" for caveat in experiment.caveats))
    return "\n".join(parts)


def _describe_data(runs: Runs) -> str:
    """Describe the examples that the runs of each column are trained on and measured on."""
    groups = [group.partition("/")[0] for run in runs.values() for group in data_usage.groups_of(run.final)]
    known = [(column, "", run.partition) for (_, column), run in runs.items()]
    return data_usage.describe_runs(known, list(dict.fromkeys(groups)))


def _describe_setting(scale: Scale, common: Settings, *, is_reduced: bool) -> str:
    """Describe the difference of the runs from the published setting, or the setting where none is published."""
    changed = dict(common)
    text = (
        f"{'Reduced' if is_reduced else 'Setting'}: {scale.reduction}" if scale.reduction else "The published setting"
    )
    if scale.pretrained and calls.parse_text(changed.pop(PRETRAINED, "none"), str | None) is None:
        text += f", but training starts from random weights, not from {scale.pretrained}"
    relevant = [f"{key}={value}" for key, value in run_identity(changed).items() if key != "data.cache"]
    return f"{text}.\n" + (f"\nSet on the command line: {', '.join(relevant)}.\n" if relevant else "")


def tabulate_measure(measure: str, entries: Sequence[Entry]) -> str:
    """Write the table of one measure: paper, here and difference in each column, or here alone if nothing is printed.

    Args:
        measure: its name.
        entries: its results, in the order of the rows.
    """
    columns = list(dict.fromkeys(entry.column for entry in entries))
    is_compared = any(entry.printed is not None for entry in entries)
    kinds = ("paper", "here", "difference") if is_compared else ("here",)
    head = [measure, *(f"{column} {kind}" if is_compared else column for column in columns for kind in kinds)]
    lines = [head, ["---"] + ["---:"] * (len(head) - 1)]
    for row in dict.fromkeys(entry.row for entry in entries):
        cells = {entry.column: entry for entry in entries if entry.row == row}
        texts = [_format_entry(cells[column]) for column in columns]
        lines.append([row, *(text[kind] for text in texts for kind in kinds)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def list_lower(reference: str, entries: Sequence[Entry]) -> list[tuple[Entry, float]]:
    """List the entries of one measure that are far below the reference in their column, and their differences to it."""
    expected = {entry.column: entry.mean for entry in entries if entry.row == reference}
    gaps = [
        (entry, entry.mean - mean)
        for entry in entries
        if entry.mean is not None and (mean := expected[entry.column]) is not None
    ]
    return [(entry, gap) for entry, gap in gaps if gap < -_MARGIN]


def _format_entry(entry: Entry) -> dict[str, str]:
    """Write the texts of an entry; the mean with four digits, and its deviation to the same decimal place."""
    measured = "no result"
    if entry.mean is not None:
        decimals = max(0, 4 - len(f"{abs(entry.mean):.0f}"))
        measured = f"{entry.mean:.{decimals}f}" + ("" if entry.std is None else f" ± {entry.std:.{decimals}f}")
    return {
        "paper": ("" if entry.printed is None else f"{entry.printed:g}")
        + ("" if entry.deviation is None else f" ± {entry.deviation:g}"),
        "here": f"{measured} ({entry.choice})" if entry.choice else measured,
        "difference": "" if entry.difference is None else f"{entry.difference:+.2f}",
    }


def to_csv(entries: Sequence[Entry]) -> str:
    """Write one line per entry, with semicolons between the seeds."""
    header = ("measure", "row", "column", "paper", "paper std", "mean", "std", "difference", "seeds", "choice")
    rows = []
    for entry in entries:
        numbers = (entry.printed, entry.deviation, entry.mean, entry.std, entry.difference)
        rows.append((*entry[:3], *numbers, ";".join(map(str, entry.seeds)), entry.choice))
    return json_files.to_csv(header, rows)


def read_csv(text: str) -> list[Entry]:
    """Read what `to_csv` wrote."""

    def read(line: Mapping[str, str]) -> Entry:
        printed, deviation = (float(line[name]) if line[name] else None for name in ("paper", "paper std"))
        seeds = [float(value) for value in line["seeds"].split(";") if value]
        return Entry(line["measure"], line["row"], line["column"], printed, seeds, deviation, line["choice"])

    return [read(line) for line in csv.DictReader(io.StringIO(text))]


def fill_blocks(page: Path, command: str, blocks: Mapping[str, str]) -> str:
    """Return the text of a page with the blocks in their places; the file stays as it is.

    Args:
        page: a Markdown file.
        command: that makes the blocks, such as `python -m docs.page_tables`.
        blocks: {name: Markdown}.

    Raises:
        InputError: The page has no place for a block, or several.
    """
    text, end = page.read_text(), "<!-- end -->"
    for name, block in blocks.items():
        start = f"<!-- {name}: made by {command} -->\n"
        filled = f"{start}\n{block.strip()}\n\n{end}"
        text, count = re.subn(f"{re.escape(start)}.*?{end}", lambda _, new=filled: new, text, flags=re.DOTALL)
        if count != 1:
            raise InputError(f"{page}: there are {count} places between '{start.strip()}' and '{end}'. Make it one.")
    return text
