"""README and the pages of docs/: their Python runs, their commands are accepted, and they name all that there is."""

import importlib
import itertools
import re
import shlex
import sys
import tomllib
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest

from experiments import tables
from experiments.benchmarks.workloads import WORKLOADS
from experiments.papers import baselines, fl_simulator
from fedjax_het._internal.docstrings import parse_docstring
from fedjax_het.algorithms import ALGORITHMS, FAMILIES
from fedjax_het.cli import __main__ as console
from fedjax_het.cli.configuration import command_line, config_files, settings
from fedjax_het.cli.training.recorder import WRITTEN
from fedjax_het.data import PARTITIONS, POISONINGS, SOURCES
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.engine import METRICS
from fedjax_het.models import MODELS
from fedjax_het.server.aggregators import AGGREGATORS
from fedjax_het.server.aggregators._robust_steps import STEPS
from fedjax_het.uplink import STAGES
from tests.harness import ADAPTERS, PROMPTS
from tests.shared import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r'^(?P<slow><!-- slow -->\n)?```(?P<language>python|bash)(?: title="(?P<title>.+?)")?\n(?P<code>.*?)^```',
    re.M | re.S,
)
COMMAND = re.compile(r"^(?:srun |.* && )?((?:fedjax-het|python -m) .*)$", re.M)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> list[re.Match]:
    return [match for match in BLOCK.finditer(path.read_text()) if match["language"] == language]


def _page(path: Path):
    return pytest.param(path, marks=[pytest.mark.slow] * (path.stem in ("system_heterogeneity", "robust", "privacy")))


def commands() -> list[tuple[Path, str]]:
    shell = [(path, block["code"].replace("\\\n", " ")) for path in PAGES for block in blocks(path, "bash")]
    return [(path, " ".join(line.split())) for path, code in shell for line in COMMAND.findall(code)]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder to work in, from which files are imported. Names that a page registers are forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    modules, before = set(sys.modules), [(registry, dict(registry)) for registry in (ALGORITHMS, SOURCES, DIAGNOSTICS)]
    yield tmp_path
    for registry, entries in before:
        registry.clear()
        registry.update(entries)
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def write_files(path: Path, place: Path) -> None:
    for block in blocks(path, "python"):
        if block["title"]:
            (place / block["title"]).write_text(block["code"])


def run_python(path: Path, place: Path, *, is_slow: bool) -> None:
    """Run a page's blocks in one namespace; a block with a title is a file, which is imported."""
    write_files(path, place)
    scope = {}
    for block in blocks(path, "python"):
        if block["title"]:
            importlib.import_module(Path(block["title"]).stem)
        elif is_slow or not block["slow"]:
            exec(compile(block["code"], name_of(path), "exec"), scope)


@pytest.mark.extended
@pytest.mark.parametrize("path", [_page(path) for path in PAGES if blocks(path, "python")], ids=name_of)
def test_the_python_of_a_page_runs(path, place):
    if path.stem == "results":
        pytest.importorskip("pandas")
    run_python(path, place, is_slow=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in PAGES if any(block["slow"] for block in blocks(path, "python"))], ids=name_of
)
def test_the_slow_python_of_a_page_gives_the_accuracy_that_it_shows(path, place, capsys):
    run_python(path, place, is_slow=True)
    printed = re.findall(r"^(?:(\w+): )?([\d.]+) (± )?", capsys.readouterr().out, re.M)
    text = [float(number) for number in re.findall(r"([\d.]+) %", path.read_text())]
    assert printed and {name for name, _, _ in printed} <= {"", "fedavg", "fedld", "fedlwf", "fedprox", "glfc"}
    for _, value, has_deviation in printed:
        assert float(value) > 80 if has_deviation else min(abs(float(value) - number) for number in text) < 3


def show_help(program: list[str]) -> None:
    """Run a command with --help alone: ["fedjax-het", "train"] or ["python", "-m", "experiments.papers", "fedld"]."""
    if program[0] == "fedjax-het":
        sys.exit(console.main([*program[1:], "--help"]))
    name, *arguments = program[2:]
    is_package = find_spec(name).submodule_search_locations is not None
    sys.exit(importlib.import_module(f"{name}.__main__" if is_package else name).main([*arguments, "--help"]))


@pytest.mark.parametrize(("path", "line"), commands(), ids=lambda value: str(value)[-60:])
def test_a_command_of_a_page_is_accepted(path, line, place, capsys):
    """Every option is one of the command's, and every setting one of the config's; nothing is trained."""
    write_files(path, place)
    words = shlex.split(line, comments=True)
    size = 4 if words[2:3] == ["experiments.papers"] else 3 if words[0] == "python" else 2
    program, arguments = words[:size], words[size:]
    if program[-1] in ("pytest", "tests.golden"):
        assert find_spec(program[-1])
        return
    own, given = command_line.split_overrides(arguments)
    with pytest.raises(SystemExit) as ended:
        show_help(program)
    assert ended.value.code == 0
    known = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    assert {option.partition("=")[0] for option in own if option.startswith("--")} <= known
    varied = dict(option.removeprefix("--vary=").split("=") for option in own if option.startswith("--vary="))
    for option in own:
        if option.startswith("--config="):
            config = config_files.find_config(option.removeprefix("--config="))
            first = {key: values.split(",")[0] for key, values in varied.items()}
            settings.complete_settings(config_files.load_config(config), given | first)


def test_the_extras_of_the_pages_exist():
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = {
        extra
        for path in PAGES
        for group in re.findall(r"\.\[([\w,-]+)\]", path.read_text())
        for extra in group.split(",")
    }
    assert named
    assert named <= extras


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_code_of_a_page_fits_88_columns(path):
    lines = [line for block in BLOCK.finditer(path.read_text()) for line in block["code"].splitlines()]
    assert not [line for line in lines if len(line) > 88]


@pytest.mark.extended
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "fedld" else pytest.mark.slow) for name in ALGORITHMS]
)
def test_the_example_of_an_algorithm_trains(algorithm_tables, capsys, name):
    exec(compile(algorithm_tables.write_example(name), name, "exec"), {})
    mean = re.search(r"'test/accuracy': \(([\d.]+),", capsys.readouterr().out)
    bound = 0.05 if name in PROMPTS else 0.3 if name in ADAPTERS else 0.5  # of ten classes, with random frozen weights
    assert mean and float(mean[1]) > bound


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_page_of_an_algorithm_has_title_paper_and_a_plain_signature(algorithm_tables, name):
    page = algorithm_tables.write_page(ALGORITHMS[name])
    title, signature = re.search(r"^# (.+)\n", page)[1], algorithm_tables.write_signature(ALGORITHMS[name])
    assert title in parse_docstring(ALGORITHMS[name]).title and signature in page
    assert re.search(r"\]\(https://(arxiv\.org/abs/\d|scholar\.google\.com)", page)
    assert "Unpack" not in signature and "MappingProxyType" not in signature
    assert all(len(line) <= 88 for line in signature.splitlines())


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("w <- w + eta_g sum_i p_i (w_i - w)", r"w \leftarrow w + \eta _{g} \sum _{i} p_{i} (w_{i} - w)"),
        ("c_i+ = 1/N sum_{i in S} |a_ik|^2", r"c_{i}^{+} = \tfrac{1}{N} \sum _{i \in S} \vert a_{ik}\vert ^{2}"),
        ("hbar, sqrt(v), m_c = n_c^(-1/4)", r"\bar{h}, \sqrt{v}, m_{c} = n_{c}^{- \tfrac{1}{4}}"),
        ("||z_b||, <v_i, g>, b1", r"\Vert z_{b}\Vert , \langle v_{i}, g\rangle , b_{1}"),
        ("the paper's h is -alpha hbar", r"\text{the}\ \text{paper's}\ h \ \text{is}\ - \alpha \bar{h}"),
        ("personal_steps times; w", r"\text{personal_steps}\ \text{times};\ w"),
    ],
)
def test_a_formula_of_a_docstring_is_translated_to_latex(formulas, text, latex):
    assert re.sub(r" +", " ", formulas.to_latex(text)).strip() == latex


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_formula_of_an_algorithm_is_rendered_as_mathematics(formulas, name):
    lines = parse_docstring(ALGORITHMS[name]).formula
    rendered = formulas.render_formula("\n".join(lines))
    assert rendered.count("<div") == len(lines) + 1
    assert "<math" in rendered and not re.search(r"\\\w|&lt;-", rendered)


def test_the_best_mean_of_a_column_is_bold(page_tables):
    table = "| measure | a paper | a here | a difference |\n| --- | ---: | ---: | ---: |\n"
    rows = "| x |  | 9.1 ± 0.2 (0.1) | +1 |\n| y | 3 | 10.2 | +2 |\n"
    assert page_tables.mark_best(table + rows).splitlines()[2:] == [
        "| x |  | 9.1 ± 0.2 (0.1) | +1 |",
        "| y | **3** | **10.2** | +2 |",
    ]


def test_readme_has_at_most_6_kilobytes():
    assert len((ROOT / "README.md").read_bytes()) <= 6000


@pytest.fixture
def algorithm_tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("docs.algorithm_tables")


@pytest.fixture
def formulas(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    pytest.importorskip("latex2mathml")
    return importlib.import_module("docs.formulas")


@pytest.fixture
def page_tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("docs.page_tables")


PAGES_WITH_TABLES = ("README.md", "docs/comparison.md")


@pytest.mark.parametrize("name", PAGES_WITH_TABLES)
def test_the_tables_of_a_page_are_those_of_their_source(page_tables, name):
    assert list(page_tables.PAGES) == [ROOT / page for page in PAGES_WITH_TABLES]
    text = (ROOT / name).read_text()
    assert page_tables.fill_page(ROOT / name) == text, "run python -m docs.page_tables"
    places = re.findall(r"^<!-- (\w+): made by python -m docs.page_tables -->$", text, re.M)
    assert places == list(page_tables.PAGES[ROOT / name])


def test_readme_lists_the_algorithms_and_their_number():
    text = (ROOT / "README.md").read_text()
    listed = text.partition("<!-- algorithms")[2].partition("<!-- end -->")[0]
    assert re.findall(r"`(\w+)`", listed) == list(ALGORITHMS)
    assert f"## {len(ALGORITHMS)} algorithms" in text


def test_the_tables_of_the_site_have_every_algorithm_in_one_family(algorithm_tables):
    overview, references = algorithm_tables.tabulate_algorithms(), algorithm_tables.tabulate_references()
    rows = re.findall(
        r"^\| \[[^]]+\]\((\w+)\.md\) `(\w+)` \| ([^|]+) \| ([^|]+) \|", overview.replace(r"\|", "/"), re.M
    )
    assert [name for name, *_ in rows] == [page for _, page, *_ in rows] == list(ALGORITHMS)
    assert sum(map(len, FAMILIES.values())) == len(ALGORITHMS)
    assert re.findall(r"^\| `(\w+)` \| \w", references, re.M) == list(ALGORITHMS)
    text = (ROOT / "docs" / "algorithms" / "index.md").read_text()
    assert re.findall(r"^<!-- table: (\w+) -->$", text, re.M) == ["algorithms", "references"]


COMPARED = {
    **{what: (experiment, 3) for what, experiment in baselines.EXPERIMENTS.items()},
    **{f"fl_simulator_{what}": (experiment, 1) for what, experiment in fl_simulator.EXPERIMENTS.items()},
}
"""{file: (experiment, number of seeds)}."""


@pytest.mark.parametrize("name", COMPARED)
def test_the_comparison_has_every_row_in_every_column(page_tables, name):
    experiment, num_seeds = COMPARED[name]
    columns = [*experiment.scales["cpu"].columns, *[experiment.average] * bool(experiment.average)]
    expected = list(itertools.product(experiment.measures, experiment.rows, columns))
    entries = [entry for group in page_tables.read_measures(name).values() for entry in group]
    assert [entry[:3] for entry in entries] == expected
    assert all(len(entry.seeds) == num_seeds for entry in entries)


@pytest.mark.parametrize("what", baselines.EXPERIMENTS)
def test_the_comparison_gives_a_reason_for_each_algorithm_far_below_fedavg(page_tables, what):
    measures = page_tables.read_measures(what)
    lower = {entry.row for group in measures.values() for entry, _ in tables.list_lower("fedavg", group)}
    text = (ROOT / "docs" / "comparison.md").read_text()
    section = text.partition(f"<!-- {what}: made by ")[2].partition("\n## ")[0]
    subjects = re.findall(r"^\* (.+?):", section, re.M)
    assert lower and {name for subject in subjects for name in re.findall(r"`([\w, ]+)`", subject)} == lower


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/data.md", [*SOURCES, *PARTITIONS]),
        ("docs/models.md", MODELS),
        (
            "docs/robust.md",
            [*AGGREGATORS, *STEPS, *POISONINGS, *(name for name in STAGES if name.startswith("attack_"))],
        ),
        ("docs/evaluation.md", [*DIAGNOSTICS, *METRICS]),
        ("docs/benchmarks.md", WORKLOADS),
        ("docs/command_line.md", [*(field.name for field in fields(settings.RunSettings)), *WRITTEN]),
    ],
)
def test_pages_name_every_documented_item(page, names):
    text = (ROOT / page).read_text()
    assert not [name for name in names if f"`{name}`" not in text]
