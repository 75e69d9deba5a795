"""The tables of docs/comparison.md, made from the CSV files beside it, which `fedjax-het paper` writes.

`python -m docs.comparison_tables` writes them anew.
"""

import re
from pathlib import Path

from experiments.papers import tables

PAGE = Path(__file__).resolve().parent / "comparison.md"
_BLOCK = re.compile(r"(?<=<!-- csv: )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def read_measures(name: str) -> dict[str, list[tables.Entry]]:
    """Read {measure: its results} from one CSV file."""
    measures: dict[str, list[tables.Entry]] = {}
    for entry in tables.read_csv((PAGE.with_suffix("") / f"{name}.csv").read_text()):
        measures.setdefault(entry.measure, []).append(entry)
    return measures


def tabulate_file(name: str) -> str:
    """Write one table per measure of a CSV file."""
    return "\n".join(tables.tabulate_measure(*measure) for measure in read_measures(name).items())


def update_page(text: str) -> str:
    """Return the page with its tables as the CSV files say: each between `<!-- csv: NAME -->` and `<!-- end -->`.

    Raises:
        ValueError: The text has no such comments.
    """
    if not _BLOCK.search(text):
        raise ValueError("comparison.md: there is no table between '<!-- csv: NAME -->' and '<!-- end -->'.")
    return _BLOCK.sub(lambda match: f"{match[1]}{match[2]}\n{tabulate_file(match[1])}\n", text)


if __name__ == "__main__":
    PAGE.write_text(update_page(PAGE.read_text()))
