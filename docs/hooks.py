"""A hook of MkDocs: writes one page per algorithm from its docstring, and inserts tables and formulas into pages."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import algorithm_tables
import formulas
from mkdocs.structure.files import File

from fedjax_het._internal.docstrings import find_title
from fedjax_het.algorithms import FAMILIES

TABLES = {
    "algorithms": algorithm_tables.tabulate_algorithms,
    "references": algorithm_tables.tabulate_references,
}
"""{table: the function that makes it}; a page has `<!-- table: NAME -->` in its place."""
_REFERENCES = re.compile(r'<details class="references".*?</details>', re.DOTALL)
_UNPACK = re.compile(r'<span title="typing.Unpack">Unpack</span>\[(.*?)\](?=</code>)')
_EMPTY = re.compile(
    r'(?:(=</span>)<span class="n">|<span title="types.MappingProxyType">)'
    r'MappingProxyType</span>(<span class="p">)?\(\{\}\)'
)


def on_config(config):
    (section,) = [entry for entry in config.nav if "Algorithms" in entry]
    section["Algorithms"] = ["algorithms/index.md"]
    for family, algorithms in FAMILIES.items():
        pages = [{find_title(algorithm): _path(algorithm)} for algorithm in algorithms]
        section["Algorithms"].append({family: pages})
    return config


def on_files(files, config):
    for algorithms in FAMILIES.values():
        for algorithm in algorithms:
            page = algorithm_tables.write_page(algorithm)
            files.append(File.generated(config, _path(algorithm), content=page))
    return files


def on_page_markdown(markdown, page, config, files):
    for name, tabulate in TABLES.items():
        if (place := f"<!-- table: {name} -->") in markdown:
            markdown = markdown.replace(place, tabulate())
    return markdown


def on_page_content(html, page, config, files):
    is_algorithm = page.file.generated_by is not None
    if is_algorithm:
        html = _REFERENCES.sub("", html)  # the page begins with them
    html = _UNPACK.sub(r"\1", _EMPTY.sub(r"\1\2{}", html))
    return formulas.render_page(
        html, has_docstrings=is_algorithm or page.file.src_uri.startswith("api/")
    )


def _path(algorithm) -> str:
    return f"algorithms/{algorithm.__name__}.md"
