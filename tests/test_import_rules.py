"""The import rules of the house, read from the source."""

import ast
from pathlib import Path

import pytest

from tests.shared import ROOT

PACKAGE = ROOT / "fedjax_het"
FILES = sorted(PACKAGE.rglob("*.py"))
FLOOR_1 = {"types", "tree", "sharing", "errors", "geometry", "cache", "native", "atomic", "double", "alike"}
FLOOR_1 |= {"validation", "memory"}
FLOOR_2 = {"algorithm", "client", "server", "models", "data", "diagnostics"}
FLOOR_3 = {"algorithms", "engine"}


def imports(path: Path) -> set[str]:
    """The modules that a file imports, as dotted names; `from package import a` counts as package.a too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def rooms_imported(path: Path) -> set[str]:
    names = {name.split(".")[1] for name in imports(path) if name.startswith("fedjax_het.")}
    return names & (FLOOR_1 | FLOOR_2 | FLOOR_3)


def inside(*rooms: str) -> list[Path]:
    return [path for path in FILES if room(path) in rooms]


@pytest.mark.parametrize("path", inside(*FLOOR_1), ids=str)
def test_the_ground_floor_stands_alone(path):
    assert rooms_imported(path) <= FLOOR_1


@pytest.mark.parametrize("path", inside(*FLOOR_2), ids=lambda path: path.name)
def test_the_second_floor_looks_down_or_within(path):
    shared = {"algorithm"} if room(path) in ("client", "server") else set()
    assert rooms_imported(path) <= FLOOR_1 | {room(path)} | shared


def test_no_arrow_between_client_and_server():
    for path in inside("client"):
        assert "server" not in rooms_imported(path)
    for path in inside("server"):
        assert "client" not in rooms_imported(path)


@pytest.mark.parametrize("path", inside("engine"), ids=lambda path: path.name)
def test_the_engine_meets_parts_only_as_slots(path):
    assert not rooms_imported(path) & {"client", "server", "algorithms"}


def test_algorithms_never_run():
    assert not any("engine" in rooms_imported(path) for path in inside("algorithms"))


def test_an_algorithm_imports_no_other():
    for path in inside("algorithms"):
        if path.stem != "__init__":
            assert not any(name.startswith("fedjax_het.algorithms") for name in imports(path)), path


def test_the_package_knows_nothing_above_it():
    forbidden = ("experiments", "configs", "matplotlib", "absl", "ml_collections", "argparse", "rich")
    for path in FILES:
        assert not any(name.split(".")[0] in forbidden for name in imports(path)), path


def test_devices_and_the_client_axis_live_in_one_place():
    rewrites_programs = PACKAGE / "alike" / "nested.py"
    allowed = {PACKAGE / "engine" / name for name in ("layout.py", "update_stack.py")} | {rewrites_programs}
    for path in FILES:
        words = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
        if path not in allowed:
            assert "shard_map" not in words, path
    for path in [*inside("client"), *inside("algorithms")]:
        assert "axis_name" not in path.read_text(), path


def test_the_server_never_touches_data():
    for path in inside("server"):
        assert not any(name.endswith(("ClientData", "ClientView", ".Examples", ".Rows")) for name in imports(path)), (
            path
        )


def test_no_room_for_everything():
    assert not [path for path in FILES if path.stem in ("utils", "common", "misc", "helpers")]


def test_nothing_is_decided_by_a_name():
    """No comparison of `name`, `algorithm`, `model` or `dataset` with a string."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name | ast.Attribute):
                left = node.left.id if isinstance(node.left, ast.Name) else node.left.attr
                strings = [c for c in node.comparators if isinstance(c, ast.Constant) and isinstance(c.value, str)]
                assert not (strings and left in ("algorithm", "model", "dataset")), f"{path}:{node.lineno}"


def test_files_stay_small():
    assert not [(path.name, n) for path in FILES if (n := len(path.read_text().splitlines())) > 300]
