"""What the report says, in its order: sections of tables and figures."""

from collections.abc import Sequence
from typing import NamedTuple

from experiments import results
from experiments.report import (
    clients,
    costs,
    curves,
    diagnosed,
    measures,
    partitions,
    provenance,
    significance,
)
from experiments.report.figures import Figure
from experiments.report.finding import Absent
from experiments.report.reading import Run
from experiments.report.rows import Row, left_out, rows
from experiments.tables import Table


class Section(NamedTuple):
    """folded: tables that a reader opens when he needs them; facts: titles and names with values, folded too."""

    name: str
    title: str
    tables: list[Table] = []
    figures: list[Figure] = []
    folded: list[Table] = []
    facts: dict[str, dict[str, str]] = {}


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


def contents(runs: Sequence[Run], absent: Sequence[Absent] = ()) -> Contents:
    """Of runs, finished or not."""
    found = rows(runs)
    score = measures.score(found)
    noun = measures.noun(score)
    compared = significance.comparisons(found)
    final = measures.table(found, significance.stars(compared), significance.starring(compared))
    settings, common = provenance.settings(found)
    versions, everywhere = provenance.versions(found)
    sections = [
        Section("runs", "Runs", [provenance.runs(found, absent)]),
        Section("results", "Results", _filled(final, significance.table(compared))),
        Section("learning", "Learning", figures=_known(curves.figure(found, score, noun))),
        Section(
            "clients",
            "Clients",
            clients.fairness(found, score),
            _known(clients.figure(found, score, noun)),
            folded=_by_client(found),
        ),
        Section("data", "Data", figures=_known(partitions.figure(found))),
        Section("diagnostics", "Diagnostics", figures=diagnosed.figures(found)),
        Section("costs", "Costs", [costs.table(found)]),
        Section(
            "settings",
            "Settings and versions",
            _filled(settings, versions),
            facts={"Settings that all rows have": common, "Versions and machines that all rows have": everywhere},
        ),
    ]
    told = [section for section in sections if section.tables or section.figures or any(section.facts.values())]
    return Contents(_title(found), _lead(found, final, compared), found, told)


def _known(figure: Figure | None) -> list[Figure]:
    return [figure] if figure else []


def _filled(*tables: Table) -> list[Table]:
    return [table for table in tables if table.rows and table.columns]


def _by_client(found: Sequence[Row]) -> list[Table]:
    done = [
        results.Finished(row.label, run.directory, left_out(run)) for row in found for run in row.runs if run.clients
    ]
    return [table for table in results.by_client(done) if table.columns]


def _title(found: Sequence[Row]) -> str:
    data = ", ".join(dict.fromkeys(run.settings["data"]["name"] for row in found for run in row.runs))
    names = [row.label for row in found]
    return f"{', '.join(names) if len(names) <= 4 else f'{len(names)} rows'} on {data}"


def _lead(found: Sequence[Row], final: Table, compared: Sequence[significance.Comparison]) -> list[str]:
    """Who does best on the first figures of the table, and by how much over FedAvg."""
    said = []
    for i, column in enumerate(final.columns[:3]):
        known = [(label, values[i]) for label, values in final.rows if values[i] is not None]
        if len(known) < 2:
            continue
        label, best = max(known, key=lambda each: each[1].mean)
        spread = "" if best.std is None else f" ± {100 * best.std:.1f}"
        said.append(f"{column}: {label} is best with {100 * best.mean:.1f}{spread} %{_over(label, column, compared)}.")
    running = sum(not run.is_finished for row in found for run in row.runs)
    return said + ([f"{running} of {sum(len(row.runs) for row in found)} runs are not finished."] if running else [])


def _over(label: str, column: str, compared: Sequence[significance.Comparison]) -> str:
    for each in compared:
        if each.label == label and each.pairs == "seeds" and column in (each.column, f"{each.column}, {each.when}"):
            p = (
                "too few seeds to test"
                if each.found.p is None
                else f"p = {each.found.p:.3g} over {each.found.num_pairs} seeds"
            )
            return f", {100 * each.found.difference:+.1f} points against {each.against} ({p})".replace("-", "−")
    return ""
