"""Config files: the embedded ones, and the tables that a file describes."""

import contextlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, get_args

from fedjax_het.cli import CONFIGS
from fedjax_het.errors import InputError, nearest, shorten


class Config(NamedTuple):
    """A config file and the argument that its get_config() is called with."""

    path: Path
    setting: str = ""

    @property
    def name(self) -> str:
        """A name for files and tables: "pacs", "pacs-fedrd"."""
        return "-".join(filter(None, (self.path.stem, self.setting)))

    def __str__(self) -> str:
        return ":".join(filter(None, (str(self.path), self.setting)))


def embedded_configs() -> list[str]:
    """Return the names of the embedded configs with their settings: "quickstart", "pacs", "pacs:fedrd"."""
    names = []
    for path in sorted(CONFIGS.glob("[!_]*.py")):
        others = _read_settings(_load_function(Config(path)))[1:]
        names += [path.stem, *(f"{path.stem}:{setting}" for setting in others)]
    return names


def find_config(text: str) -> Config:
    """Find the embedded config of a name, "pacs" or "pacs:fedrd", or else take the name as a path."""
    found = re.fullmatch(r"(.*?)(?::(\w+))?", text, re.DOTALL)
    assert found  # any text matches
    name, setting = found.groups(default="")
    embedded = CONFIGS / f"{name}.py"
    with contextlib.suppress(OSError):  # the name is too long for a file
        if name.isidentifier() and embedded.is_file():
            return Config(embedded, setting)
    return Config(Path(name), setting)


def load_config(config: Config | str | Path) -> dict[str, Any]:
    """Run the get_config() of a config file and return its result.

    get_config() may take a setting; its annotation `Literal["fedavg", "fedrd"]` lists those that it knows. The file may
    import its neighbors: `from .base import base`.

    Raises:
        InputError: There is no such file, Python cannot run it (the message has the line and the error), get_config()
            is missing, does not take the setting, needs more arguments, or does not return a dict.
    """
    config = config if isinstance(config, Config) else find_config(str(config))
    get_config = _load_function(config)
    where = f"--config: '{config}'"
    arguments = [config.setting] if config.setting else []
    known = _read_settings(get_config)
    if config.setting and known and config.setting not in known:
        raise InputError(f"{where}: there is no setting '{config.setting}'. {nearest(config.setting, known)}")
    try:
        inspect.signature(get_config).bind(*arguments)
    except TypeError as error:
        called = f"with '{config.setting}'" if config.setting else "without arguments"
        raise InputError(f"{where}: get_config() is called {called}: {error}.") from error
    with _importable_neighbors(config.path):
        table = _run_file(config, lambda: get_config(*arguments))
    if not isinstance(table, Mapping):
        raise InputError(f"{where}: get_config() must return a dict, not {shorten(table)}.")
    if wrong := [key for key in _keys(table) if not isinstance(key, str)]:
        raise InputError(f"{where}: keys must be text, and {shorten(wrong[0])} is not.")
    return dict(table)


def _load_function(config: Config) -> Callable[..., Any]:
    path = config.path
    try:
        is_file = path.suffix == ".py" and path.is_file()
    except OSError as error:
        raise InputError(f"--config: cannot read {shorten(str(path))}: {error.strerror}.") from error
    if not is_file:
        known = nearest(str(config), embedded_configs())
        raise InputError(f"--config: there is no Python file '{path}', and no embedded config of that name. {known}")
    with _importable_neighbors(path) as package:
        spec = importlib.util.spec_from_file_location(f"{package}.config", path)
        assert spec and spec.loader  # because the name ends in .py
        module, execute = importlib.util.module_from_spec(spec), spec.loader.exec_module
        _run_file(config, lambda: execute(module))
    get_config = getattr(module, "get_config", None)
    if not callable(get_config):
        raise InputError(f"--config: '{config}' defines no get_config(). It must return a dict.")
    return get_config


def _read_settings(get_config: Callable[..., Any]) -> tuple[str, ...]:
    """Return the settings that the annotation of get_config's first parameter lists; the first is the default."""
    for parameter in inspect.signature(get_config).parameters.values():
        return get_args(parameter.annotation)
    return ()


@contextlib.contextmanager
def _importable_neighbors(path: Path) -> Iterator[str]:
    """Provide a package of the files beside a config for relative imports; yield its name, and remove it afterwards."""
    name = "_configs_beside"
    sys.modules[name] = package = ModuleType(name)
    package.__path__ = [str(path.absolute().parent)]
    try:
        yield name
    finally:
        for module in [module for module in sys.modules if module.partition(".")[0] == name]:
            del sys.modules[module]


def _keys(table: Mapping[Any, Any]) -> Iterator[Any]:
    for key, value in table.items():
        yield key
        yield from _keys(value) if isinstance(value, Mapping) else ()


def _run_file(config: Config, function: Callable[[], Any]) -> Any:
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
        own = [line for file, line in places if file == config.path.absolute()]
        line = f", line {own[-1]}" if own else ""
        end = f" ({places[-1][0]}, line {places[-1][1]})" if places and places[-1][0] != config.path.absolute() else ""
        message = " ".join(message.split()) or "no message"
        raise InputError(f"--config: '{config}'{line}: {type(error).__name__}: {message}{end}") from error
