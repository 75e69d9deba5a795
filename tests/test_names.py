"""The rules of names and of module docstrings, read from the source."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import fedjax_het
from tests.shared import ROOT

FILES = sorted(path for package in ("fedjax_het", "experiments") for path in (ROOT / package).rglob("*.py"))
QUESTIONS = {"What", "Where", "How", "Who", "Which", "When", "Why", "Do", "Does", "Is", "Are", "TODO."}
VAGUE = {"each", "one", "most", "least", "it", "at"}  # no names of variables, arguments or functions
SUBPACKAGES = [module.name for module in pkgutil.walk_packages(fedjax_het.__path__, "fedjax_het.") if module.ispkg]


def show(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_module_docstrings_of_tests_are_no_questions():
    for path in sorted((ROOT / "tests").rglob("*.py")):
        words = (ast.get_docstring(ast.parse(path.read_text())) or "").split()
        assert not words or words[0] not in QUESTIONS, show(path)


@pytest.mark.parametrize("path", FILES, ids=show)
def test_module_docstrings_are_present_and_no_questions(path):
    words = (ast.get_docstring(ast.parse(path.read_text())) or "").split()
    assert words and words[0] not in QUESTIONS


def test_exceptions_end_in_error_and_variables_say_what_they_hold():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = {getattr(node, field, None) for field in ("id", "arg", "name")}
            assert not names & VAGUE, f"{show(path)}:{getattr(node, 'lineno', 0)}: {names & VAGUE}"
            bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
            if any(base.endswith(("Error", "Exception")) for base in bases):
                assert node.name.endswith("Error"), f"{show(path)}: {node.name}"


@pytest.mark.parametrize("name", ["fedjax_het", *SUBPACKAGES])
def test_no_submodule_is_hidden_by_another_object_of_its_name(name):
    package = importlib.import_module(name)
    for module in pkgutil.iter_modules(package.__path__):
        found = getattr(package, module.name, None)
        assert found is None or getattr(found, "__name__", None) == f"{name}.{module.name}", module.name
