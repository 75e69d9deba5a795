"""Config files: the embedded ones, and the tables that a file describes."""

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from fedjax_het.cli import CONFIGS
from fedjax_het.errors import InputError, nearest, shorten


def embedded_configs() -> list[str]:
    """Return the names of the embedded configs, "quickstart", "pacs/fedavg"; files named base are no configs."""
    files = (path for path in CONFIGS.rglob("*.py") if path.stem not in ("__init__", "base"))
    return sorted(path.relative_to(CONFIGS).with_suffix("").as_posix() for path in files)


def find_config(name: str) -> Path:
    """Return the file of the embedded config of this name, or the name as a path if there is none."""
    return CONFIGS / f"{name}.py" if name in embedded_configs() else Path(name)


def load_config(path: str | Path) -> dict[str, Any]:
    """Run the get_config() of a config file; return its result as plain dicts.

    A config file may import its neighbors: `from .base import base` from the same folder, or
    `from ..pacs.base import base` from the folder pacs beside it.

    Raises:
        InputError: There is no such file, Python cannot run it (the message has the line and the error), or
            get_config() is missing, takes arguments, or does not return a table.
    """
    path = Path(path)
    try:
        is_file = path.suffix == ".py" and path.is_file()
    except OSError as error:
        raise InputError(f"--config: cannot read {shorten(str(path))}: {error.strerror}.") from error
    if not is_file:
        known = nearest(str(path), embedded_configs())
        raise InputError(f"--config: there is no Python file '{path}', and no embedded config of that name. {known}")
    with _importable_neighbors(path) as package:
        return _call_config(path, package)


@contextlib.contextmanager
def _importable_neighbors(path: Path) -> Iterator[str]:
    """Provide a package of the files beside a config for relative imports; yield its name, and remove it afterwards."""
    folder = path.absolute().parent
    above, beside = "_configs_above", "_configs_above.beside"
    for name, place in ((above, folder.parent), (beside, folder)):
        sys.modules[name] = package = ModuleType(name)
        package.__path__ = [str(place)]
    try:
        yield beside
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == above]:
            del sys.modules[name]


def _call_config(path: Path, package: str) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location(f"{package}.config", path)
    assert spec and spec.loader  # because the name ends in .py
    module, execute = importlib.util.module_from_spec(spec), spec.loader.exec_module
    _run_file(path, lambda: execute(module))
    get_config = getattr(module, "get_config", None)
    if not callable(get_config):
        raise InputError(f"--config: '{path}' defines no get_config(). It must return a ConfigDict.")
    try:
        inspect.signature(get_config).bind()
    except TypeError as error:
        raise InputError(f"--config: '{path}': get_config() is called without arguments: {error}.") from error
    table = _run_file(path, get_config)
    if not isinstance(table, Mapping | ConfigDict):
        raise InputError(f"--config: '{path}': get_config() must return a ConfigDict or a dict, not {shorten(table)}.")
    table = _run_file(path, (table if isinstance(table, ConfigDict) else ConfigDict(table)).to_dict)
    if wrong := [key for key in _keys(table) if not isinstance(key, str)]:
        raise InputError(f"--config: '{path}': keys must be text, and {shorten(wrong[0])} is not.")
    return table


def _keys(table: Mapping[Any, Any]) -> Iterator[Any]:
    for key, value in table.items():
        yield key
        yield from _keys(value) if isinstance(value, Mapping) else ()


def _run_file(path: Path, function: Callable[[], Any]) -> Any:
    """Call a part of a config file; raise its errors as InputError with the last line of the file that ran."""
    try:
        return function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        message = str(error)
        if isinstance(error, SyntaxError):
            places.append((error.filename or "<", error.lineno))
            message = error.msg
        places = [(Path(file), line) for file, line in places if line and not file.startswith("<") and file != __file__]
        own = [line for file, line in places if file == path.absolute()]
        line = f", line {own[-1]}" if own else ""
        at = f" ({places[-1][0]}, line {places[-1][1]})" if places and places[-1][0] != path.absolute() else ""
        message = " ".join(message.split()) or "no message"
        raise InputError(f"--config: '{path}'{line}: {type(error).__name__}: {message}{at}") from error
