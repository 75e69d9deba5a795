"""Tables of the algorithms, made from the docstrings of their recipes: docs/hooks.py puts them into the site."""

import inspect
import itertools
import re
from collections.abc import Callable
from pathlib import Path

from fedjax_het._internal.docstrings import parse_docstring
from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import FAMILIES

ROOT = Path(__file__).resolve().parent.parent
_ARXIV = re.compile(r"arXiv:(\d+\.\d+)")


def tabulate_families() -> str:
    """Write README's table: the algorithms of each family, those of one file with a link to it."""

    def find_file(algorithm: Callable[..., Algorithm]) -> str:
        return Path(inspect.getsourcefile(inspect.unwrap(algorithm)) or "").relative_to(ROOT).as_posix()

    rows = ["| family | algorithms |", "| --- | --- |"]
    for family, algorithms in FAMILIES.items():
        files = [
            f"[{', '.join(f'`{algorithm.__name__}`' for algorithm in together)}]({path})"
            for path, together in itertools.groupby(algorithms, find_file)
        ]
        rows.append(f"| {family} | {', '.join(files)} |")
    return "\n".join([*rows, ""])


def tabulate_algorithms() -> str:
    """Write one section per family: what each of its algorithms does, what it sends, and what a client keeps."""
    lines = []
    for family, algorithms in FAMILIES.items():
        lines += [f"## {family}", "", "| name | does | is sent | is kept by a client |", "| --- | --- | --- | --- |"]
        for algorithm in algorithms:
            text = parse_docstring(algorithm)
            _, _, kept = text.wire.partition("Kept by a client: ")
            kept = kept.partition(". ")[0].rstrip(".")
            sent = text.wire.partition(". ")[0].rstrip(".")
            does = text.title.partition(": ")[2].rstrip(".")
            cells = map(_escape, (does, sent[:1].lower() + sent[1:], kept))
            name = algorithm.__name__
            lines.append(f"| [`{name}`]({name}.md) | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def tabulate_references() -> str:
    """Write one row per algorithm: its papers, and the code that it is checked against."""
    lines = ["| algorithm | papers and code |", "| --- | --- |"]
    for algorithms in FAMILIES.values():
        for algorithm in algorithms:
            references = _escape(parse_docstring(algorithm).references)
            linked = _ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", references)
            lines.append(f"| `{algorithm.__name__}` | {linked} |")
    return "\n".join([*lines, ""])


def _escape(text: str) -> str:
    """Escape what Markdown would read as the border of a cell or as emphasis."""
    return re.sub(r"([|*_<\[\]])", r"\\\1", text)
