"""The contents of the report: its sections of tables, figures and pictures in their order."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from fedjax_het.cli.report import clients, comparisons, costs, curves, diagnostics, measures, phases
from fedjax_het.cli.report.diagnostics import Picture
from fedjax_het.cli.report.rows import (
    Row,
    group_by_data,
    left_out,
    make_rows,
    tabulate_runs,
    tabulate_settings,
    tabulate_versions,
)
from fedjax_het.cli.runs.figures import Figure
from fedjax_het.cli.runs.results import MissingRun, RunResults
from fedjax_het.cli.runs.tables import LabeledRun, Table, Value, client_tables
from fedjax_het.errors import InputError, nearest

_MAX_LINES = 16  # of a table that is not folded
Part = Table | Figure | Picture


class Section(NamedTuple):
    """parts: in their order; folded: tables that a reader opens; facts: {title: {name: value}}, folded, too."""

    name: str
    title: str
    parts: Sequence[Part | None]
    folded: Sequence[Part | None] = ()
    facts: dict[str, dict[str, str]] = {}


class Contents(NamedTuple):
    title: str
    lead: list[str]  # the summary, one sentence each
    rows: list[Row]
    sections: list[Section]

    @property
    def tables(self) -> list[Table]:
        return [
            part for section in self.sections for part in (*section.parts, *section.folded) if isinstance(part, Table)
        ]

    @property
    def figures(self) -> list[Figure]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Figure)]

    @property
    def pictures(self) -> list[Picture]:
        return [part for section in self.sections for part in section.parts if isinstance(part, Picture)]


def make_contents(
    runs: Sequence[RunResults],
    missing: Sequence[MissingRun] = (),
    scores_to_reach: Sequence[float] = (),
    client: str | None = None,
    has_confusion: bool = False,
) -> Contents:
    """Make the contents of a report on runs, finished or not; each data set has sections of its own.

    Args:
        runs: the runs.
        missing: given directories without a run.
        scores_to_reach: scores between 0 and 1; each gets a table of the cost of reaching it.
        client: the name of a client that has a section of its own.
        has_confusion: whether models are restored to draw confusion matrices.
    """
    rows = make_rows(runs)
    groups = group_by_data(rows)
    settings, common = tabulate_settings(rows)
    versions, common_versions = tabulate_versions(rows)
    facts = {"Settings that all rows share": common, "Versions and machines that all rows share": common_versions}
    sections, lead = [Section("runs", "Runs", [tabulate_runs(rows, missing)])], []
    for data, group in groups.items():
        own, sentences = _make_sections(group, scores_to_reach, client, has_confusion)
        sections += own if len(groups) == 1 else [_rename(section, data) for section in own]
        lead += sentences if len(groups) == 1 else [f"{data}, {sentence}" for sentence in sentences]
    sections.append(Section("settings", "Settings and versions", [settings, versions], facts=facts))
    if running := sum(not run.is_finished for run in runs):
        lead.append(f"{running} of {len(runs)} runs are not finished.")
    if client and not clients.find_client(rows, client):
        known = {entry["client"] for row in rows if row.first.partition for entry in row.first.partition["clients"]}
        raise InputError(f"--client: no run has a client '{client}'. {nearest(client, known)}")
    sections = [_drop_empty(section) for section in sections]
    sections = [section for section in sections if section.parts or any(section.facts.values())]
    names = [row.label for row in rows]
    title = f"{', '.join(names) if len(names) <= 4 else f'{len(names)} rows'} on {', '.join(groups)}"
    return Contents(title, lead, rows, sections)


def _make_sections(
    group: Sequence[Row], scores_to_reach: Sequence[float], client: str | None, has_confusion: bool
) -> tuple[list[Section], list[str]]:
    """Return (the sections of the rows of one data set, the sentences of their summary)."""
    compared = comparisons.compare_with_baseline(group)
    final = measures.make_table(group, comparisons.significance_stars(compared), comparisons.describe_stars(compared))
    tests = [comparisons.make_table(compared)]
    shown, folded = ([], tests) if len(compared) > _MAX_LINES else (tests, [])
    reached = [costs.make_target_table(group, target) for target in scores_to_reach]
    finished = [LabeledRun(row.label, run, left_out(run)) for row in group for run in row.runs if run.clients]
    matrices = [clients.draw_confusion(group)] if has_confusion else []
    client_parts = clients.make_client_parts(group, client, has_confusion) if client else []
    sections = [
        Section("results", "Results", [final, *measures.make_metric_tables(group), *shown, *matrices], folded),
        Section("learning", "Learning", [*reached, curves.make_figure(group)]),
        Section("phases", "Phases", [phases.make_table(group), phases.make_figure(group)]),
        Section(
            "clients",
            "Clients",
            [*clients.make_fairness_tables(group), clients.make_scores_figure(group)],
            client_tables(finished),
        ),
        Section("client", f"Client {client}", client_parts),
        Section("data", "Data", [clients.make_partition_figure(group)]),
        Section("diagnostics", "Diagnostics", diagnostics.make_figures(group)),
        Section("pictures", "Pictures", diagnostics.draw_pictures(group)),
        Section("costs", "Costs", [costs.make_table(group)]),
    ]
    return sections, _summarize(final, compared)


def _rename(section: Section, data: str) -> Section:
    """Add the name of the data set to the names of a section and of its files."""
    slug = re.sub(r"\W+", "_", data)
    parts, folded = ([item and item._replace(name=f"{item.name}_{slug}") for item in part] for part in section[2:4])
    return Section(f"{section.name}_{slug}", f"{section.title}: {data}", parts, folded, section.facts)


def _drop_empty(section: Section) -> Section:
    """Leave out what could not be made, and tables without rows or columns."""
    parts, folded = (
        [item for item in part if item and (not isinstance(item, Table) or (item.rows and item.columns))]
        for part in section[2:4]
    )
    return section._replace(parts=parts, folded=folded)


def _summarize(final: Table, compared: Sequence[comparisons.Comparison]) -> list[str]:
    """Name the best row of the first three figures of the table, and its difference from FedAvg."""
    sentences = []
    last = [(i, column) for i, column in enumerate(final.columns) if not column.endswith(f", {measures.SELECTED}")]
    for i, column in last[:3]:
        values = ((label, row[i]) for label, row in final.rows)
        known = [(label, value) for label, value in values if isinstance(value, Value) and math.isfinite(value.mean)]
        if len(known) < 2:
            continue
        label, best = max(known, key=lambda pair: pair[1].mean)
        spread = "" if best.std is None else f" ± {100 * best.std:.1f}"
        difference = _describe_difference(label, column, compared)
        sentences.append(f"{column}: {label} is best with {100 * best.mean:.1f}{spread} %{best.few_seeds}{difference}.")
    return sentences


def _describe_difference(label: str, column: str, compared: Sequence[comparisons.Comparison]) -> str:
    for c in compared:
        if c.label == label and c.pairs == "seeds" and column in (c.column, f"{c.column}, {c.when}"):
            seeds = f"{c.test.num_pairs} seed{'s' * (c.test.num_pairs > 1)}"
            p = f"{seeds}, too few for a test" if c.test.p is None else f"p = {c.test.p:.2g}, {seeds}"
            return f", {100 * c.test.difference:+.1f} points against {c.against} ({p})".replace("-", "−")
    return ""
