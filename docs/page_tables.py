"""The tables that are kept in pages: README's, those of the comparison and those of the compiled programs.

`python -m docs.page_tables` makes them anew, from the docstrings of the recipes and from the files of figures in docs/,
which `fedjax-het paper` and `python -m experiments.benchmarks.compile` write.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from experiments.benchmarks.figure_file import FigureFile, Record
from experiments.papers import tables
from experiments.runs.page_blocks import fill_blocks

from .algorithm_tables import ROOT, tabulate_families

DOCS = Path(__file__).resolve().parent
TPUS = {"one chip": "v5e:1x1", "four chips": "v5e:2x2"}
GPUS = {"one GPU": "h100:1", "four GPUs": "h100:4"}


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


def read_rounds(
    model: str, topologies: Mapping[str, str]
) -> dict[str, dict[str, Record]]:
    """Read {algorithm: {topology: the record of its rounds}} from the files of the compiled programs."""
    found: dict[str, dict[str, Record]] = defaultdict(dict)
    for path in sorted((DOCS / "compilation").glob("*.json")):
        file = FigureFile(path)
        topology = file.about["device"].partition(",")[0]
        for record in file.records:
            if (record["model"], record["program"]) == (
                model,
                "rounds",
            ) and topology in topologies.values():
                found[record["algorithm"]][topology] = record
    return dict(found)


def tabulate_rounds(model: str, topologies: Mapping[str, str]) -> str:
    """Write one row per algorithm whose rounds with a model were compiled for devices; below, those that were refused.

    Args:
        model: The name of the model.
        topologies: {title: topology}, one device first and several then. What a device computes in a round is shown of
            one device, collectives of several.
    """
    records = read_rounds(model, topologies)
    _, many = topologies
    with_operations = any(
        "operations" in record for each in records.values() for record in each.values()
    )
    titles = [f"core seconds, {title}" for title in topologies] + [
        f"temporary MB, {title}" for title in topologies
    ]
    titles += [
        "GFLOP",
        "GB",
        *["operations"] * with_operations,
        f"MB of collectives, {many}",
    ]
    titles += [f"estimated ms, {title}" for title in topologies]
    lines = [
        f"| algorithm | {' | '.join(titles)} |",
        f"| --- |{' ---: |' * len(titles)}",
    ]
    refused: dict[str, list[str]] = defaultdict(list)
    for algorithm, of_algorithm in records.items():
        each = [of_algorithm[topology] for topology in topologies.values()]
        if {record["result"] for record in each} == {"compiled"}:
            first, last = each
            cells = [record["compile_cpu_s"] for record in each] + [
                record["temporary_mb"] for record in each
            ]
            cells += [
                first["gflop"],
                first["gb"],
                *[first.get("operations")] * with_operations,
            ]
            cells += [
                sum(
                    float(part.split()[-1])
                    for part in last["collectives_mb"].split(",")
                    if part
                )
            ]
            cells += [1e3 * record["estimated_s"] for record in each]
            lines.append(f"| `{algorithm}` | {' | '.join(map(_format, cells))} |")
        else:
            refused[each[0]["result"]].append(f"`{algorithm}`")
    lines += [f"\n{', '.join(names)}: {result}" for result, names in refused.items()]
    return "\n".join(lines)


def _format(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


COMPARED = (
    "fashion_mnist",
    "cifar10",
    "pacs",
    "fl_simulator_100_clients",
    "fl_simulator_200_clients",
)
COMPILED = {
    "cnn": ("cnn", TPUS),
    "resnet18": ("resnet18", TPUS),
    "unet": ("unet", TPUS),
    "cnn_on_gpus": ("cnn", GPUS),
}
"""{table: (model, the devices that its rounds are compiled for)}."""
PAGES: dict[Path, dict[str, Callable[[], str]]] = {
    ROOT / "README.md": {"algorithms": tabulate_families},
    DOCS / "comparison.md": {
        name: partial(tabulate_comparison, name) for name in COMPARED
    },
    DOCS / "compilation.md": {
        name: partial(tabulate_rounds, *which) for name, which in COMPILED.items()
    },
}
"""{page: {name of a table: the function that makes it}}."""


def fill_page(page: Path) -> str:
    """Return the text of a page with its tables as they should be; raises InputError where it has no place for one."""
    blocks = {name: tabulate() for name, tabulate in PAGES[page].items()}
    return fill_blocks(page, "python -m docs.page_tables", blocks)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill_page(page))
