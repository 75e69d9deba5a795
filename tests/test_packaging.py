"""Dependencies that the installed package needs and declares."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest

from fedjax_het.cli.__main__ import COMMANDS
from tests.shared import ROOT

pytestmark = pytest.mark.extended

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"fedjax_het", "configs"}
INSTALLED = [path for folder in sorted(OURS) for path in sorted((ROOT / folder).rglob("*.py"))]
OPTIONAL = {
    "dp_accounting": "privacy",
    "huggingface_hub": "hub",
    "jinja2": "report",
    "markupsafe": "report",
    "nibabel": "medical",
    "plotly": "report",
    "pyarrow": "text",
    "tensorboardX": "tensorboard",
    "tokenizers": "text",
    "wandb": "wandb",
}
"""{module: the extra that installs it}."""


def distributions(requirements):
    return {re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-") for requirement in requirements}


@functools.cache
def imported():
    """{module from elsewhere: the files that import it}."""
    found = {}
    for path in INSTALLED:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - OURS:
                found.setdefault(name, []).append(path.relative_to(ROOT))
    return found


def test_declared_dependencies_are_the_imported_packages():
    distributions_of = packages_distributions()
    needed = {distributions_of[name][0].lower().replace("_", "-") for name in imported() if name not in OPTIONAL}
    assert needed == distributions(PROJECT["dependencies"])


@pytest.mark.parametrize(("module", "extra"), OPTIONAL.items())
def test_extras_declare_the_packages_imported_for_them(module, extra):
    assert module in imported()
    assert module.lower().replace("_", "-") in distributions(PROJECT["optional-dependencies"][extra])


def test_commands_and_the_package_are_imported_without_the_extras():
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in INSTALLED]
    modules = [name.removesuffix(".__init__") for name in modules if name.startswith("fedjax_het.")]
    modules = [name for name in modules if not name.startswith("fedjax_het.cli.")]
    modules += [f"fedjax_het.cli.{module}" for module, _ in COMMANDS.values()]
    program = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({list(OPTIONAL)}))
for name in {modules}:
    importlib.import_module(name)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
