"""The rules of imports between packages, read from the source."""

import ast
from pathlib import Path

import pytest

from tests.shared import ROOT

PACKAGE = ROOT / "fedjax_het"
ALL_FILES = sorted(PACKAGE.rglob("*.py"))
FILES = [path for path in ALL_FILES if not path.is_relative_to(PACKAGE / "cli")]
"""The library, without the command line."""
BASE = {
    "concepts",
    "examples",
    "types",
    "problem",
    "annotations",
    "tree",
    "sharing",
    "errors",
    "generation",
    "geometry",
    "labels",
    "noise",
    "placeholders",
    "privacy",
    "spectra",
    "survival",
    "topologies",
    "mixing",
    "shared_models",
    "validation",
    "attackers",
    "_internal",
}
PARTS = {"algorithm", "client", "server", "models", "data", "diagnostics", "uplink"}
TOP = {"algorithms", "engine"}


def imports(path: Path) -> set[str]:
    """The modules that a file imports, as dotted names; `from package import a` counts as package.a too."""
    return {name for node in ast.walk(ast.parse(path.read_text())) for name in imported_by(node)}


def imported_by(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{node.module}: relative import"
        return {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return set()


def package_of(path: Path) -> str:
    """The module or package directly below fedjax_het."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def packages_imported(path: Path) -> set[str]:
    names = {name.split(".")[1] for name in imports(path) if name.startswith("fedjax_het.")}
    return names & (BASE | PARTS | TOP)


def files_in(*packages: str) -> list[Path]:
    return [path for path in FILES if package_of(path) in packages]


@pytest.mark.parametrize("path", files_in(*BASE), ids=str)
def test_base_modules_import_no_other_layer(path):
    assert packages_imported(path) <= BASE


@pytest.mark.parametrize("path", files_in(*PARTS), ids=lambda path: path.name)
def test_parts_import_the_base_and_themselves_only(path):
    shared = {"algorithm"} if package_of(path) in ("client", "server", "uplink") else set()
    assert packages_imported(path) <= BASE | {package_of(path)} | shared


def test_client_and_server_do_not_import_each_other():
    for path in files_in("client"):
        assert "server" not in packages_imported(path)
    for path in files_in("server"):
        assert "client" not in packages_imported(path)


@pytest.mark.parametrize("path", files_in("engine"), ids=lambda path: path.name)
def test_the_engine_imports_no_part_of_an_algorithm(path):
    assert not packages_imported(path) & {"client", "server", "uplink", "algorithms"}


def test_algorithms_do_not_import_the_engine():
    assert not any("engine" in packages_imported(path) for path in files_in("algorithms"))


def test_an_algorithm_imports_no_other():
    for path in files_in("algorithms"):
        if path.stem != "__init__":
            assert not any(name.startswith("fedjax_het.algorithms") for name in imports(path)), path


def test_the_package_imports_no_command_line_or_plotting():
    """`History.plot` asks for Matplotlib when it is called, as `History.to_dataframe` does for pandas."""
    forbidden = ("cli", "experiments", "configs", "matplotlib", "absl", "argparse", "rich")
    for path in FILES:
        assert not any(name.removeprefix("fedjax_het.").split(".")[0] in forbidden for name in imports(path)), path


def test_packages_that_take_long_to_import_are_imported_where_they_are_used():
    slow = ("flax.nnx", "orbax", "scipy.", "sklearn", "tensorflow_datasets", "torch")  # not `import scipy` alone
    for path in FILES:
        found = {name for node in ast.parse(path.read_text()).body for name in imported_by(node)}
        assert not any(f"{name}.".startswith(slow) and name != "scipy" for name in found), path


def test_shard_map_is_used_in_layouts_alone():
    allowed = {PACKAGE / "engine" / "parallel" / name for name in ("layout.py", "update_stack.py")}
    for path in FILES:
        words = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        if path not in allowed:
            assert "shard_map" not in words, path
    for path in [*files_in("client"), *files_in("algorithms")]:
        assert "axis_name" not in path.read_text(), path


def test_the_server_never_touches_data():
    for path in files_in("server"):
        assert not any(name.endswith(("ClientData", "ClientView", ".Examples", ".Rows")) for name in imports(path)), (
            path
        )


def test_no_module_is_named_utils():
    assert not [path for path in ALL_FILES if path.stem in ("utils", "common", "misc", "helpers")]


def test_no_comparison_with_the_name_of_an_algorithm():
    """No comparison of `name`, `algorithm`, `model` or `dataset` with a string."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name | ast.Attribute):
                left = node.left.id if isinstance(node.left, ast.Name) else node.left.attr
                strings = [c for c in node.comparators if isinstance(c, ast.Constant) and isinstance(c.value, str)]
                assert not (strings and left in ("algorithm", "model", "dataset")), f"{path}:{node.lineno}"


def test_files_have_at_most_300_lines():
    assert not [(path.name, n) for path in ALL_FILES if (n := len(path.read_text().splitlines())) > 300]


ENGINE = (
    "parallel",
    "feature_cache",
    "round",
    "evaluation",
    "storage",
    "execution",
    "planning",
    "diagnose",
    "prediction",
    "simulation",
    "early_stopping",
    "history",
)


@pytest.mark.parametrize("path", files_in("engine"), ids=lambda path: path.name)
def test_engine_packages_import_those_before_them_only(path):
    place = path.relative_to(PACKAGE / "engine").parts[0].removesuffix(".py")
    if place == "__init__":
        return
    imported = {name.split(".")[2] for name in imports(path) if name.startswith("fedjax_het.engine.")}
    assert imported <= set(ENGINE[: ENGINE.index(place) + 1]), path
