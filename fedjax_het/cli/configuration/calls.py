"""Config tables as calls of factories: {"name": "fedprox", "mu": 0.1} means ALGORITHMS["fedprox"](mu=0.1).

The factory's signature is the only schema of the options, their types and their defaults.
"""

import ast
import contextlib
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedjax_het.annotations import LogUniform, RunSetting, Uniform, alternatives, find_mark
from fedjax_het.errors import InputError, nearest, shorten
from fedjax_het.validation import KeywordsOf, unknown_option

Registry = Mapping[str, Callable[..., Any]]
_MISSING = inspect.Parameter.empty
_PLAIN = (bool, int, float, str)
_SCALARS = (*_PLAIN, type(None))
_KIND_WORDS = {type(None): "None", bool: "true or false"}
_WORDS = {"true": True, "false": False, "none": None}


class Setting(NamedTuple):
    """One argument of a factory, as a config may set it."""

    kind: Any  # its annotation
    default: Any = _MISSING
    is_required: bool = False
    run_setting: str | None = None  # the setting of the run that is its default, see `annotations.RunSetting`
    table: Mapping[str, Any] | None = None  # the Settings of a nested table, see `validation.KeywordsOf`
    function: Callable[..., Any] | None = None  # the function that the nested table is passed to
    search: Uniform | LogUniform | None = None  # the space that a study draws it from; None leaves it as it is


def read_signature(factory: Callable[..., Any], given: Iterable[str] = (), preset: Any = None) -> dict[str, Setting]:
    """Return the arguments of a factory that a config may set, with the keys of `**rest: Unpack[SomeTypedDict]`.

    Args:
        factory: A function or a class.
        given: Arguments that the run provides. They are left out, and so are arguments such as callables, which no
            plain value fits.
        preset: The name of a preset of the factory (see `validation.with_presets`), whose values are the defaults.
    """
    annotated = factory.__init__ if inspect.isclass(factory) else factory
    kinds, marked = typing.get_type_hints(annotated), typing.get_type_hints(annotated, include_extras=True)
    options: dict[str, Setting] = {}
    for name, argument in inspect.signature(factory).parameters.items():
        kind = kinds.get(name, Any)
        if argument.kind is argument.VAR_KEYWORD:
            options |= {key: option for key, option in _keys(kind).items() if key not in given}
        elif argument.kind is argument.VAR_POSITIONAL or name in given:
            continue
        elif table := find_mark(marked.get(name), KeywordsOf):
            inner = read_signature(table.function, table.given)
            options[name] = Setting(kind, argument.default, table=inner, function=table.function)
        elif _is_plain(kind):
            run_mark, is_required = find_mark(marked.get(name), RunSetting), argument.default is _MISSING
            search = find_mark(marked.get(name), Uniform, LogUniform)
            options[name] = Setting(
                kind, argument.default, is_required, run_mark.setting if run_mark else None, search=search
            )
    chosen = getattr(factory, "presets", {}).get(preset, {}) if isinstance(preset, str) else {}
    return {name: option._replace(default=chosen.get(name, option.default)) for name, option in options.items()}


def _keys(kind: Any) -> dict[str, Setting]:
    if typing.get_origin(kind) is not typing.Unpack:
        return {}
    (keys,) = typing.get_args(kind)
    required = keys.__required_keys__
    hints, marked = typing.get_type_hints(keys), typing.get_type_hints(keys, include_extras=True)
    return {
        name: Setting(hint, is_required=name in required, search=find_mark(marked[name], Uniform, LogUniform))
        for name, hint in hints.items()
        if _is_plain(hint)
    }


def _is_plain(kind: Any) -> bool:
    return any(
        member is Any or member in _PLAIN or typing.get_origin(member) in (tuple, list, Sequence, typing.Literal)
        for member in alternatives(kind)
    )


# ---- one value -------------------------------------------------------------------------------------------------------
def convert(value: Any, kind: Any) -> Any:
    """Convert a value to the type of an annotation: int to float, list to tuple. Raise TypeError if it does not fit."""
    for alternative in alternatives(kind):
        try:
            return _convert_one(value, alternative)
        except TypeError:
            continue
    if message := unknown_option(value, kind):
        raise TypeError(message.removesuffix("."))
    raise TypeError(f"expected {_describe_kind(kind)}, got {shorten(value)}")


def _convert_one(value: Any, kind: Any) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and is_number:
        with contextlib.suppress(OverflowError):
            return float(value)
    if origin in (tuple, list, Sequence) and isinstance(value, (tuple, list)):
        kinds = inner if origin is tuple and inner[-1] is not Ellipsis else inner[:1] * len(value)
        if len(kinds) == len(value):
            return tuple(convert(v, k) for v, k in zip(value, kinds, strict=True))
    if kind is Any or (origin is typing.Literal and value in inner) or (kind in _SCALARS and type(value) is kind):
        return value
    raise TypeError


def _describe_kind(kind: Any) -> str:
    words = []
    for member in alternatives(kind):
        if typing.get_origin(member) is typing.Literal:
            words += map(repr, typing.get_args(member))
        elif typing.get_origin(member) in (tuple, list, Sequence):
            words.append(f"a list of {_describe_kind(typing.get_args(member)[0])}")
        elif _is_plain(member) or member is type(None):
            words.append(_KIND_WORDS.get(member) or getattr(member, "__name__", str(member)))
    return " or ".join(words)


def parse_text(text: str, kind: Any) -> Any:
    """Parse a value of the command line by its annotation: "0.1", "true", "none", "6,16", "dc", "clip,nnm"."""
    if kind is str:
        return text
    try:
        value = _WORDS[text.lower()] if text.lower() in _WORDS else ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # raised for text that is not a literal
        with contextlib.suppress(TypeError):
            return convert(tuple(name.strip() for name in text.split(",")), kind)
        return convert(text, kind)
    for candidate in (value, text, (value,)):  # a single number may be a list of one
        with contextlib.suppress(TypeError):
            return convert(candidate, kind)
    return convert(text, kind)


# ---- a table ---------------------------------------------------------------------------------------------------------
def choose_factory(table: Mapping[str, Any], registry: Registry, where: str) -> Callable[..., Any]:
    """Return the factory that a table names; raise InputError for a missing or unknown name."""
    name = table.get("name")
    if isinstance(name, str) and name in registry:
        return registry[name]
    wrong = "is missing" if name is None else f"is unknown: {name!r}"
    raise InputError(f"{where}.name {wrong}. {nearest(str(name or ''), registry)}")


def check_table(table: Mapping[str, Any], schema: Mapping[str, Setting], where: str) -> dict[str, Any]:
    """Convert every value of a table and fill in every default, in the order of the schema.

    Raises:
        InputError: A key is unknown or missing, or a value has another type.
    """
    for key in table:
        if key not in schema:
            raise InputError(f"{where}.{key} is unknown. {nearest(key, schema)}")
    filled = {}
    for key, option in schema.items():
        if option.table is not None:
            inner = table.get(key, {})
            if not isinstance(inner, Mapping):
                known = ", ".join(option.table)
                raise InputError(f"{where}.{key} must be a table, got {shorten(inner)}. Known: {known}.")
            filled[key] = check_table({**option.default, **inner}, option.table, f"{where}.{key}")
        elif key in table:
            try:
                filled[key] = convert(table[key], option.kind)
            except TypeError as error:
                raise InputError(f"{where}.{key}: {error}.") from error
        elif option.is_required:
            raise InputError(
                f"{where}.{key} is required and not set. Set it in the config, or with --{where}.{key}=..."
            )
        elif option.default is not _MISSING:
            filled[key] = option.default
    return filled


def call_factory(factory: Callable[..., Any], arguments: Mapping[str, Any], where: str, **given: Any) -> Any:
    """Call a factory; raise its ValueError as InputError with the key of the argument that begins the message."""
    try:
        return factory(**given, **arguments)
    except ValueError as error:
        name = str(error).partition(": ")[0]
        is_argument = name in arguments or isinstance(arguments.get(name.partition(".")[0]), Mapping | tuple)
        raise InputError(f"{where}{'.' if is_argument else ': '}{error}") from error


def build_from_table(table: Mapping[str, Any], registry: Registry, where: str, **given: Any) -> Any:
    """Call the factory that a checked table names with the values of the table and those that the run gives."""
    arguments = {key: value for key, value in table.items() if key != "name"}
    return call_factory(registry[table["name"]], arguments, where, **given)
