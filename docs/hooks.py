"""A hook of MkDocs that makes a page of each algorithm, whose contents mkdocstrings takes from the docstring."""

from mkdocs.structure.files import File

from fedjax_het.algorithms import ALGORITHMS

PAGE = """# {name}

::: fedjax_het.algorithms.{name}
    options: {{show_root_heading: false, show_root_toc_entry: false, heading_level: 2}}

`--config.algorithm.name={name}` selects this algorithm on the command line; in Python it is `fh.algorithms.{name}()`.
The settings of local training are those of [`fh.local_updates.sgd`](../api/client.md#local-updates).
"""


def on_config(config):
    (section,) = [entry for entry in config.nav if "Algorithms" in entry]
    section["Algorithms"] = ["algorithms/index.md", *({name: f"algorithms/{name}.md"} for name in ALGORITHMS)]
    return config


def on_files(files, config):
    for name in ALGORITHMS:
        files.append(File.generated(config, f"algorithms/{name}.md", content=PAGE.format(name=name)))
    return files
