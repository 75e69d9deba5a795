"""What the report says, in its order: sections of tables and figures."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from ..runs import results
from ..runs.tables import Table
from . import clients, comparisons, costs, curves, diagnostics, images, measures, partitions, provenance
from .figures import Figure
from .images import Picture
from .rows import Row, by_data, left_out, rows
from .run_paths import Absent
from .run_reader import RunData

_LONG = 16  # lines of a table that is folded away


class Section(NamedTuple):
    """folded: tables that a reader opens when he needs them; facts: titles and names with values, folded too."""

    name: str
    title: str
    tables: list[Table] = []
    figures: list[Figure] = []
    folded: list[Table] = []
    facts: dict[str, dict[str, str]] = {}
    pictures: list[Picture] = []


class Contents(NamedTuple):
    title: str
    lead: list[str]  # what there is to see at a glance, a sentence each
    rows: list[Row]
    sections: list[Section]

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in (*section.tables, *section.folded)]

    @property
    def figures(self) -> list[Figure]:
        return [figure for section in self.sections for figure in section.figures]

    @property
    def pictures(self) -> list[Picture]:
        return [picture for section in self.sections for picture in section.pictures]


def contents(runs: Sequence[RunData], absent: Sequence[Absent] = ()) -> Contents:
    """Of runs, finished or not; each data set has sections of its own."""
    found = rows(runs)
    groups = by_data(found)
    settings, common = provenance.settings(found)
    versions, everywhere = provenance.versions(found)
    facts = {"Settings that all rows have": common, "Versions and machines that all rows have": everywhere}
    sections, lead = [Section("runs", "Runs", [provenance.runs(found, absent)])], []
    for data, group in groups.items():
        own, said = _of_data(group)
        sections += own if len(groups) == 1 else [_apart(section, data) for section in own]
        lead += said if len(groups) == 1 else [f"{data}, {sentence}" for sentence in said]
    sections.append(Section("settings", "Settings and versions", _filled(settings, versions), facts=facts))
    if running := sum(not run.is_finished for run in runs):
        lead.append(f"{running} of {len(runs)} runs are not finished.")
    told = [each for each in sections if each.tables or each.figures or each.pictures or any(each.facts.values())]
    return Contents(_title(found, list(groups)), lead, found, told)


def _of_data(group: Sequence[Row]) -> tuple[list[Section], list[str]]:
    """(the sections of rows of one data set, what there is to see at a glance)."""
    score = measures.score(group)
    noun = measures.noun(score)
    compared = comparisons.comparisons(group)
    final = measures.table(group, comparisons.stars(compared), comparisons.starring(compared))
    tests = _filled(comparisons.table(compared))
    is_long = len(compared) > _LONG
    fairness, clientwise = clients.fairness(group, score), _by_client(group)
    sections = [
        Section("results", "Results", [*_filled(final), *([] if is_long else tests)], folded=tests if is_long else []),
        Section("learning", "Learning", figures=_known(curves.figure(group, score, noun))),
        Section("clients", "Clients", fairness, _known(clients.figure(group, score, noun)), folded=clientwise),
        Section("data", "Data", figures=_known(partitions.figure(group, "pixels" if score == "dice" else "examples"))),
        Section("diagnostics", "Diagnostics", figures=diagnostics.figures(group)),
        Section("pictures", "Pictures", pictures=images.taken(group)),
        Section("costs", "Costs", [costs.table(group)]),
    ]
    return sections, _lead(final, compared)


def _apart(section: Section, data: str) -> Section:
    """With the data set's name in its own and in those of its files."""

    def named(parts):
        return [part._replace(name=f"{part.name}_{slug}") for part in parts]

    slug = re.sub(r"\W+", "_", data)
    return section._replace(
        name=f"{section.name}_{slug}",
        title=f"{section.title}: {data}",
        tables=named(section.tables),
        figures=named(section.figures),
        folded=named(section.folded),
        pictures=named(section.pictures),
    )


def _known(figure: Figure | None) -> list[Figure]:
    return [figure] if figure else []


def _filled(*tables: Table) -> list[Table]:
    return [table for table in tables if table.rows and table.columns]


def _by_client(found: Sequence[Row]) -> list[Table]:
    done = [
        results.FinishedRun(row.label, run.directory, left_out(run)) for row in found for run in row.runs if run.clients
    ]
    return [table for table in results.client_scores(done) if table.columns]


def _title(found: Sequence[Row], data: Sequence[str]) -> str:
    names = [row.label for row in found]
    return f"{', '.join(names) if len(names) <= 4 else f'{len(names)} rows'} on {', '.join(data)}"


def _lead(final: Table, compared: Sequence[comparisons.Comparison]) -> list[str]:
    """Who does best on the first figures of the table, and by how much over FedAvg."""
    said = []
    last = [(i, column) for i, column in enumerate(final.columns) if not column.endswith(f", {measures.SELECTED}")]
    for i, column in last[:3]:
        known = [(label, values[i]) for label, values in final.rows if values[i] and math.isfinite(values[i].mean)]
        if len(known) < 2:
            continue
        label, best = max(known, key=lambda each: each[1].mean)
        spread = "" if best.std is None else f" ± {100 * best.std:.1f}"
        said.append(f"{column}: {label} is best with {100 * best.mean:.1f}{spread} %{_over(label, column, compared)}.")
    return said


def _over(label: str, column: str, compared: Sequence[comparisons.Comparison]) -> str:
    for each in compared:
        if each.label == label and each.pairs == "seeds" and column in (each.column, f"{each.column}, {each.when}"):
            seeds = f"{each.found.num_pairs} seed{'s' * (each.found.num_pairs > 1)}"
            p = f"{seeds}, too few to test" if each.found.p is None else f"p = {each.found.p:.2g}, {seeds}"
            return f", {100 * each.found.difference:+.1f} points against {each.against} ({p})".replace("-", "−")
    return ""
