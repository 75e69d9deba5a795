"""The tables that are stored in pages: those of README and of the comparison.

`python -m docs.page_tables` writes them from the docstrings of the recipes and from the results in docs/comparison/,
which `python -m experiments.papers` writes.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from experiments import tables
from experiments.tables import fill_blocks

from .algorithm_tables import ROOT, tabulate_families

DOCS = Path(__file__).resolve().parent


def read_measures(name: str) -> dict[str, list[tables.Entry]]:
    """Read {measure: its results} from one CSV file of the comparison."""
    measures: dict[str, list[tables.Entry]] = {}
    for entry in tables.read_csv((DOCS / "comparison" / f"{name}.csv").read_text()):
        measures.setdefault(entry.measure, []).append(entry)
    return measures


def tabulate_comparison(name: str) -> str:
    """Write one table per measure of a CSV file of the comparison, with the highest mean of each column in bold."""
    return "\n".join(
        mark_best(tables.tabulate_measure(*measure))
        for measure in read_measures(name).items()
    )


def mark_best(table: str) -> str:
    """Write the highest number of each column of a Markdown table in bold."""
    lines = [
        [cell.strip() for cell in line[1:-1].split("|")]
        for line in table.strip().splitlines()
    ]
    titles, _, *rows = lines
    for column in (
        column
        for column, title in enumerate(titles)
        if column and not title.endswith("difference")
    ):
        means = [float(row[column].partition(" ")[0] or "-inf") for row in rows]
        for row, mean in zip(rows, means, strict=True):
            row[column] = f"**{row[column]}**" if mean == max(means) else row[column]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


COMPARED = (
    "fashion_mnist",
    "cifar10",
    "pacs",
    "digits",
    "fl_simulator_100_clients",
    "fl_simulator_200_clients",
)
PAGES: dict[Path, dict[str, Callable[[], str]]] = {
    ROOT / "README.md": {"algorithms": tabulate_families},
    DOCS / "comparison.md": {
        name: partial(tabulate_comparison, name) for name in COMPARED
    },
}
"""{page: {name of a table: the function that makes it}}."""


def fill_page(page: Path) -> str:
    """Return the text of a page with up-to-date tables; raises InputError if the page has no place for one."""
    blocks = {name: tabulate() for name, tabulate in PAGES[page].items()}
    return fill_blocks(page, "python -m docs.page_tables", blocks)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill_page(page))
