"""Pages and tables of the algorithms, made from their docstrings; docs/hooks.py adds them to the site."""

import inspect
import re
import textwrap
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path

from fedjax_het._internal.docstrings import find_title, parse_docstring
from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import ALGORITHMS, FAMILIES

ROOT = Path(__file__).resolve().parent.parent
_ARXIV = re.compile(r"arXiv:(\d+\.\d+)")
_REPOSITORY = re.compile(r"(?<![\w/.:-])([A-Za-z][\w-]*/[\w-]*[A-Za-z][\w-]*)")
_PAGE = """# {title}

{paper} · `fh.algorithms.{name}` in Python, `--config.algorithm.name={name}` on the command line
{{ .paper }}

## Example

```python
{example}```

## Reference

```python
{signature}
```

::: fedjax_het.algorithms.{name}
    options: {{show_root_heading: false, show_root_toc_entry: false, heading_level: 3}}

The settings of local training are those of [`fh.local_updates.sgd`](../api/client.md#local-updates).
"""
_EXAMPLE = """import fedjax_het as fh

dataset = fh.data.load("digits")
partition = fh.data.dirichlet(alpha=0.5)
federation = fh.data.federate(dataset, partition, num_clients=5, {extra}=0.2)
{model}

algorithm = fh.algorithms.{name}(learning_rate=0.05)
history = fh.simulate(algorithm, model, federation, rounds=20)
print(history.mean_and_std())
"""


_MLP = 'model = fh.models.mlp(federation.num_classes, hidden=(32,), norm="batch")'
_CLIP = """# With pretrained="clip", a directory with weights, sizes are those of its config.json.
sizes = {"patch": 2, "features": 32, "layers": 1, "heads": 2, "text_features": 32}
sizes |= {"text_layers": 1, "text_heads": 2, "text_vocabulary": 16}
prompts = [[1, 3 + name, 2, 15] for name in range(10)]  # start, name, full stop, end
model = fh.models.clip(10, prompts=prompts, texts="tower", **sizes)"""
"""The models of the examples."""


def tabulate_families() -> str:
    """Write README's table: the algorithms of each family."""
    rows = ["| family | algorithms |", "| --- | --- |"]
    rows += [
        f"| {family} | {', '.join(f'`{algorithm.__name__}`' for algorithm in algorithms)} |"
        for family, algorithms in FAMILIES.items()
    ]
    return "\n".join([*rows, ""])


def write_page(algorithm: Callable[..., Algorithm]) -> str:
    """Write the page of an algorithm: paper, example, and a place for the docstring."""
    text = parse_docstring(algorithm)
    name = algorithm.__name__
    parts = {"paper": link_references(text.references), "example": write_example(name)}
    return _PAGE.format(
        title=find_title(algorithm),
        name=name,
        signature=write_signature(algorithm),
        **parts,
    )


def write_signature(algorithm: Callable[..., Algorithm]) -> str:
    """Write the signature of an algorithm with its defaults and without annotations, in lines of 88 columns."""
    parameters = []
    for parameter in inspect.signature(algorithm).parameters.values():
        default = {} if isinstance(parameter.default, Mapping) else parameter.default
        parameters.append(
            parameter.replace(default=default, annotation=parameter.empty)
        )
    signature = f"{algorithm.__name__}{inspect.Signature(parameters)}".replace("'", '"')
    return (
        signature
        if len(signature) <= 88
        else re.sub(r"^(\w+)\((.*)\)$", _break_signature, signature)
    )


def _break_signature(match: re.Match) -> str:
    lines = textwrap.wrap(f"{match[2]},", 84)
    return "\n    ".join([f"{match[1]}(", *lines]) + "\n)"


def write_example(name: str) -> str:
    """Write a script that trains with an algorithm."""
    prompted, cut = (
        [algorithm.__name__ for algorithm in FAMILIES[family]]
        for family in ("Prompts of CLIP", "Different capacities")
    )
    mlp = _MLP.replace(', norm="batch"', "") if name in cut else _MLP
    extra = "public" if ALGORITHMS[name]().reads_public else "valid_fraction"
    model = _CLIP if name in prompted else mlp
    return _EXAMPLE.format(name=name, model=model, extra=extra)


def link_references(references: str) -> str:
    """Write references as Markdown with links to papers and repositories; without an address, to a search."""
    linked = _escape(references)
    if not _ARXIV.search(references):
        title = references.partition(";")[0]
        query = urllib.parse.urlencode(
            {"q": re.sub(r", [A-Z][\w ]* 20\d\d.*", "", title)}
        )
        linked += f" [Find the paper](https://scholar.google.com/scholar?{query})."
    linked = _REPOSITORY.sub(_link_repository, linked)
    return _ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", linked)


def _link_repository(match: re.Match) -> str:
    return f"[{match[1]}](https://github.com/{match[1]})"


def tabulate_algorithms() -> str:
    """Write one section per family: the idea, communication and client state of its algorithms."""
    lines = []
    for family, algorithms in FAMILIES.items():
        lines += [
            f"## {family}",
            "",
            "| algorithm | idea | communication | client state |",
            "| --- | --- | --- | --- |",
        ]
        for algorithm in algorithms:
            text = parse_docstring(algorithm)
            _, _, state = text.communication.partition("Client state: ")
            communication, state = (
                part.partition(". ")[0].rstrip(".")
                for part in (text.communication, state)
            )
            idea = text.title.partition(": ")[2].rstrip(".")
            name = algorithm.__name__
            link = f"[{find_title(algorithm)}]({name}.md) `{name}`"
            lines.append(
                f"| {link} | {' | '.join(map(_escape, (idea, communication, state)))} |"
            )
        lines.append("")
    return "\n".join(lines)


def tabulate_references() -> str:
    """Write one row per algorithm: its papers, and the code that it is checked against."""
    lines = ["| algorithm | papers and code |", "| --- | --- |"]
    for algorithms in FAMILIES.values():
        for algorithm in algorithms:
            references = link_references(parse_docstring(algorithm).references)
            lines.append(f"| `{algorithm.__name__}` | {references} |")
    return "\n".join([*lines, ""])


def _escape(text: str) -> str:
    """Escape characters that Markdown interprets as the border of a cell or as emphasis."""
    return re.sub(r"([|*_<\[\]])", r"\\\1", text)
