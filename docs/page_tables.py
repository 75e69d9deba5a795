"""The tables that are kept in pages: README's, those of the comparison and those of the compiled programs.

`python -m docs.page_tables` makes them anew, from the docstrings of the recipes and from the files of figures in docs/,
which `fedjax-het paper` and `python -m experiments.benchmarks.compile` write.
"""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from experiments.benchmarks.figure_file import FigureFile, Record
from experiments.papers import tables
from experiments.runs.page_blocks import fill_blocks

from .algorithm_tables import ROOT, tabulate_families

DOCS = Path(__file__).resolve().parent
TOPOLOGIES = {"one chip": "v5e:1x1", "four chips": "v5e:2x2"}
_TITLES = (
    *(f"core seconds, {chips}" for chips in TOPOLOGIES),
    *(f"temporary MB, {chips}" for chips in TOPOLOGIES),
    "GFLOP",
    "GB",
    "MB of collectives, four chips",
    *(f"estimated ms, {chips}" for chips in TOPOLOGIES),
)


def read_measures(name: str) -> dict[str, list[tables.Entry]]:
    """Read {measure: its results} from one CSV file of the comparison."""
    measures: dict[str, list[tables.Entry]] = {}
    for entry in tables.read_csv((DOCS / "comparison" / f"{name}.csv").read_text()):
        measures.setdefault(entry.measure, []).append(entry)
    return measures


def tabulate_comparison(name: str) -> str:
    """Write one table per measure of a CSV file of the comparison."""
    return "\n".join(tables.tabulate_measure(*measure) for measure in read_measures(name).items())


def read_rounds(model: str) -> dict[str, dict[str, Record]]:
    """Read {algorithm: {topology: the record of its rounds}} from the files of the compiled programs."""
    found: dict[str, dict[str, Record]] = defaultdict(dict)
    for path in sorted((DOCS / "compilation").glob("v5e*.json")):
        file = FigureFile(path)
        topology = file.about["device"].partition(",")[0]
        for record in file.records:
            if (record["model"], record["program"]) == (model, "rounds"):
                found[record["algorithm"]][topology] = record
    return dict(found)


def tabulate_rounds(model: str) -> str:
    """Write one row per algorithm whose rounds with a model were compiled for TPUs; below, those that were refused."""
    lines = [f"| algorithm | {' | '.join(_TITLES)} |", f"| --- |{' ---: |' * len(_TITLES)}"]
    refused: dict[str, list[str]] = defaultdict(list)
    for algorithm, records in read_rounds(model).items():
        one, four = (records[topology] for topology in TOPOLOGIES.values())
        if one["result"] == four["result"] == "compiled":
            collectives = sum(float(part.split()[-1]) for part in four["collectives_mb"].split(",") if part)
            cells = [one["compile_cpu_s"], four["compile_cpu_s"], one["temporary_mb"], four["temporary_mb"]]
            cells += [one["gflop"], one["gb"], collectives, 1e3 * one["estimated_s"], 1e3 * four["estimated_s"]]
            lines.append(f"| `{algorithm}` | {' | '.join(map(_format, cells))} |")
        else:
            refused[one["result"]].append(f"`{algorithm}`")
    lines += [f"\n{', '.join(names)}: {result}" for result, names in refused.items()]
    return "\n".join(lines)


def _format(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


COMPARED = ("fashion_mnist", "cifar10", "pacs", "fl_simulator_100_clients", "fl_simulator_200_clients")
COMPILED = ("cnn", "resnet18", "unet")
PAGES: dict[Path, dict[str, Callable[[], str]]] = {
    ROOT / "README.md": {"algorithms": tabulate_families},
    DOCS / "comparison.md": {name: partial(tabulate_comparison, name) for name in COMPARED},
    DOCS / "compilation.md": {name: partial(tabulate_rounds, name) for name in COMPILED},
}
"""{page: {name of a table: the function that makes it}}."""


def fill_page(page: Path) -> str:
    """Return the text of a page with its tables as they should be; raises InputError where it has no place for one."""
    blocks = {name: tabulate() for name, tabulate in PAGES[page].items()}
    return fill_blocks(page, "python -m docs.page_tables", blocks)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill_page(page))
