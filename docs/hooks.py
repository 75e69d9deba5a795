"""A hook of MkDocs that makes the pages of algorithms from their docstrings: one of each, and the tables of all."""

import algorithm_tables
from mkdocs.structure.files import File

from fedjax_het.algorithms import ALGORITHMS, FAMILIES

PAGE = """# {name}

::: fedjax_het.algorithms.{name}
    options: {{show_root_heading: false, show_root_toc_entry: false, heading_level: 2}}

`--config.algorithm.name={name}` selects this algorithm on the command line; in Python it is `fh.algorithms.{name}()`.
The settings of local training are those of [`fh.local_updates.sgd`](../api/client.md#local-updates).
"""
TABLES = {"algorithms": algorithm_tables.tabulate_algorithms, "references": algorithm_tables.tabulate_references}
"""{table: the function that makes it}; a page has `<!-- table: NAME -->` in its place."""


def on_config(config):
    (section,) = [entry for entry in config.nav if "Algorithms" in entry]
    section["Algorithms"] = ["algorithms/index.md"]
    for family, algorithms in FAMILIES.items():
        names = [algorithm.__name__ for algorithm in algorithms]
        section["Algorithms"].append({family: [{name: f"algorithms/{name}.md"} for name in names]})
    return config


def on_files(files, config):
    for name in ALGORITHMS:
        files.append(File.generated(config, f"algorithms/{name}.md", content=PAGE.format(name=name)))
    return files


def on_page_markdown(markdown, page, config, files):
    for name, tabulate in TABLES.items():
        if (place := f"<!-- table: {name} -->") in markdown:
            markdown = markdown.replace(place, tabulate())
    return markdown
