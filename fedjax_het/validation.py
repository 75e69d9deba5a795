"""Validation of the arguments of factories: ranges of numbers, names of options, tables of keywords, and presets.

    @validate_arguments
    def proximal(mu: NonNegative = 0.01, form: Literal["squared", "norm_per_tensor"] = "squared") -> Term: ...

A factory that is called with a number outside its range or with an unknown name raises an InputError that begins with
the argument's name. Numbers that are not known yet (JAX tracers) pass, so that a factory may be called inside a
transformed function.
"""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np

from fedjax_het.annotations import alternatives, find_mark
from fedjax_het.errors import InputError, nearest, shorten

P = ParamSpec("P")
R = TypeVar("R")

LARGEST_COUNT = 2**31 - 1  # compiled programs count in int32
LARGEST_NUMBER = float(np.finfo(np.float32).max)
SMALLEST_NUMBER = float(np.finfo(np.float32).tiny)  # above 0


@dataclass(frozen=True)
class Range:
    """An interval of numbers; NaN is in none, nor are numbers other than 0 that are 0 in float32.

    Args:
        low: The smallest number.
        high: The largest number; by default the largest that float32 holds.
        excludes_low: Whether `low` itself is outside.
        excludes_high: Whether `high` itself is outside.
        is_whole: Whether only whole numbers are inside.
    """

    low: float
    high: float = LARGEST_NUMBER
    excludes_low: bool = False
    excludes_high: bool = False
    is_whole: bool = False

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, np.ndarray | jax.Array):
            return all(entry in self for entry in np.asarray(value).ravel().tolist())
        if isinstance(value, bool | np.bool_) or not isinstance(value, Integral if self.is_whole else Real):
            return False
        value = value if isinstance(value, int) else float(value)
        is_above = self.low < value if self.excludes_low else self.low <= value
        is_below = value < self.high if self.excludes_high else value <= self.high
        return bool(is_above and is_below and not 0 < abs(value) < SMALLEST_NUMBER)

    def __str__(self) -> str:
        if self.is_whole:
            return f"a whole number from {self.low} to {self.high}"
        if self.high < LARGEST_NUMBER:
            return f"a number in {'(['[not self.excludes_low]}{self.low}, {self.high}{')]'[not self.excludes_high]}"
        if self.low == -LARGEST_NUMBER:
            return "a finite number"
        return f"a finite number {'above' if self.excludes_low else 'of at least'} {self.low}"


Finite = Annotated[float, Range(-LARGEST_NUMBER)]
NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, excludes_low=True)]
Fraction = Annotated[float, Range(0, 1)]
PositiveFraction = Annotated[float, Range(0, 1, excludes_low=True)]
FractionBelowOne = Annotated[float, Range(0, 1, excludes_high=True)]
OpenFraction = Annotated[float, Range(0, 1, excludes_low=True, excludes_high=True)]
Count = Annotated[int, Range(1, LARGEST_COUNT, is_whole=True)]
CountOrZero = Annotated[int, Range(0, LARGEST_COUNT, is_whole=True)]
Seed = CountOrZero
Preset = Literal["default", "released"]
"""Of a factory's options: its signature's defaults, or what the code that the authors released does."""

Keywords = Mapping[str, Any]


class KeywordsOf(NamedTuple):
    """Marks an argument that is a table of keyword arguments of another function.

        aggregation: Annotated[Keywords, KeywordsOf(principal_directions, given=("fraction",))] = MappingProxyType({})

    Args:
        function: The function whose keyword arguments the table may hold; each is checked as its signature says.
        given: Arguments of that function that the table may not hold, because the factory gives them itself.
    """

    function: Callable[..., Any]
    given: tuple[str, ...] = ()

    def names(self) -> list[str]:
        """The arguments that the table may hold."""
        return [name for name in inspect.signature(self.function).parameters if name not in self.given]


def validate_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that every call checks its arguments against the constraints in their annotations.

    The keys of `**rest: Unpack[SomeTypedDict]` are checked too. Defaults are taken as they are.

    Args:
        function: A function whose annotations hold constraints, see `constraints`.

    Returns:
        The function with the same signature; it raises InputError for the first argument that its annotation forbids.
    """
    signature = inspect.signature(function)
    find_kinds = functools.cache(lambda: constraints(function))  # few functions are called, of all that are imported

    @functools.wraps(function)
    def validated(*args: P.args, **kwargs: P.kwargs) -> R:
        given: dict[str, Any] = {}
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            is_rest = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            given |= value if is_rest else {name: value}
        check_constraints(find_kinds(), given)
        return function(*args, **kwargs)

    validated.__dict__["__signature__"] = _without_constraints(function)
    return validated


def _without_constraints(function: Callable[..., Any]) -> inspect.Signature:
    """The signature for people: `rounds: int` in place of `rounds: Annotated[int, Range(...)]`."""
    signature, kinds = inspect.signature(function), typing.get_type_hints(function)
    arguments = []
    for parameter in signature.parameters.values():
        kind = kinds.get(parameter.name, parameter.annotation)
        is_unpacked = typing.get_origin(kind) is typing.Unpack
        arguments.append(parameter.replace(annotation=typing.get_args(kind)[0] if is_unpacked else kind))
    return signature.replace(parameters=arguments, return_annotation=kinds.get("return", signature.return_annotation))


def with_presets(**presets: Mapping[str, Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a factory that has an argument `preset` with the options of each preset.

    An argument that the caller passes wins over the preset, also inside a table of keywords. The decorated function
    has the attribute `presets`, from which configs take their defaults.

    Args:
        presets: Arguments of the factory by the name of the preset; "default", the signature's own, is always there.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def chosen(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind(*args, **kwargs).arguments
            preset = kwargs.get("preset")
            for name, value in presets.get(preset, {}).items() if isinstance(preset, str) else ():
                if name not in given:
                    kwargs[name] = value
                elif isinstance(value, Mapping) and isinstance(given[name], Mapping):
                    kwargs[name] = {**value, **given[name]}
            return function(*args, **kwargs)

        chosen.__dict__["presets"] = presets  # an attribute, which the type of a function does not have
        return chosen

    return decorate


def constraints(owner: Callable[..., Any] | type) -> dict[str, Any]:
    """The annotations of a function's arguments, or of a class's fields, that can be checked, by name.

    Those are annotations that hold a `Range`, a `Literal` or `KeywordsOf`, alone, in unions or in sequences.
    """
    kinds = typing.get_type_hints(owner, include_extras=True)
    for kind in list(kinds.values()):
        if typing.get_origin(kind) is typing.Unpack:
            kinds |= typing.get_type_hints(typing.get_args(kind)[0], include_extras=True)
    return {name: kind for name, kind in kinds.items() if name != "return" and _is_constrained(kind)}


def check_constraints(kinds: Mapping[str, Any], values: Mapping[str, Any], where: str = "") -> None:
    """Raise InputError for the first value that the annotation of its name forbids.

    Args:
        kinds: Annotations by name, see `constraints`.
        values: The given values by name; names without an annotation are skipped.
        where: Prefix of the names in messages, "aggregation.".
    """
    for name, value in values.items():
        if name not in kinds:
            continue
        table = find_mark(kinds[name], KeywordsOf)
        if table and isinstance(value, Mapping):
            for key in value:
                if key not in table.names():
                    raise InputError(f"{where}{name}.{key} is unknown. {nearest(str(key), table.names())}")
            check_constraints(constraints(table.function), value, f"{where}{name}.")
        elif message := unknown_option(value, kinds[name]):
            raise InputError(f"{where}{name}: {message}")
        elif expected := _mismatch(value, kinds[name]):
            size = abs(value) if isinstance(value, float) else 0
            note = ", which is infinite in float32" if LARGEST_NUMBER < size < float("inf") else ""
            note = ", which is 0 in float32" if 0 < size < SMALLEST_NUMBER else note
            raise InputError(f"{where}{name}: must be {expected}, not {shorten(value)}{note}.")


def refuse_without_effect(factory: Callable[..., Any], reason: str, **options: Any) -> None:
    """Raise InputError for the first option that is not at the factory's default; a key of `**rest` has no default."""
    arguments = inspect.signature(factory).parameters
    for name, value in options.items():
        if name not in arguments or isinstance(value, jax.core.Tracer) or value != arguments[name].default:
            raise InputError(f"{name}: has no effect {reason}. Leave it out.")


def check_clients(name: str, clients: Iterable[int], num_clients: int) -> None:
    """Raise InputError if an option names an id that is not a client of the federation."""
    if (last := max(clients, default=0)) >= num_clients:
        raise InputError(
            f"{name}: there is no client {last}. The {num_clients} clients have the ids 0 to {num_clients - 1}."
        )


def may_be_nonzero(value: Any) -> bool:
    """Whether a number is not 0, as far as is known: a JAX tracer may be anything."""
    return isinstance(value, jax.core.Tracer) or bool(value != 0)


def unknown_option(value: Any, kind: Any) -> str:
    """An error message for text that is not one of an annotation's names, with the nearest name; "" if it is valid."""
    kinds = alternatives(kind)
    names = [name for member in kinds if typing.get_origin(member) is Literal for name in typing.get_args(member)]
    names = [name for name in names if isinstance(name, str)]
    if not isinstance(value, str) or not names or not _mismatch(value, kind):
        return ""
    others = [_mismatch(object(), member) for member in kinds if typing.get_origin(member) is not Literal]
    hint = f" Or give {' or '.join(others)}." if others else ""
    return f"unknown option {shorten(value)}. {nearest(value, names)}{hint}"


def _is_constrained(kind: Any) -> bool:
    is_marked = typing.get_origin(kind) is Literal or find_mark(kind, Range, KeywordsOf) is not None
    return is_marked or any(map(_is_constrained, typing.get_args(kind)))


def _mismatch(value: Any, kind: Any) -> str:
    """A phrase for the values that the annotation allows, where this one is not among them; else nothing."""
    if isinstance(value, jax.core.Tracer):
        return ""
    kinds = sorted(alternatives(kind), key=lambda member: not _is_constrained(member))
    expected = [_mismatch_one(value, member) for member in kinds]
    return "" if "" in expected else " or ".join(dict.fromkeys(expected))


def _mismatch_one(value: Any, kind: Any) -> str:
    if find_mark(kind, KeywordsOf):
        return "" if isinstance(value, Mapping) else "a table of options"
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if limits := find_mark(kind, Range):
        return "" if value in limits else str(limits)
    if kind is types.NoneType:
        return "" if value is None else "None"
    if origin is Literal:
        is_known = isinstance(value, str | bool | Integral) and (type(value), value) in [(type(x), x) for x in inner]
        return "" if is_known else " or ".join(map(repr, inner))
    if origin in (tuple, list, Sequence):
        return _mismatch_in_sequence(value, origin, inner)
    if origin is Callable:
        return "" if callable(value) else "a function"
    if isinstance(kind, type):
        return "" if isinstance(value, kind) else {str: "text", bool: "True or False"}.get(kind, kind.__name__)
    return ""


def _mismatch_in_sequence(value: Any, origin: type, inner: tuple[Any, ...]) -> str:
    is_fixed = origin is tuple and Ellipsis not in inner
    if not isinstance(value, list | tuple | np.ndarray | range) or (is_fixed and len(value) != len(inner)):
        entries = f"{len(inner)} entries" if is_fixed else "entries"
        return f"a list with {entries}, each {_mismatch(object(), inner[0])}"
    kinds = inner if is_fixed else inner[:1] * len(value)
    for entry, entry_kind in zip(value, kinds, strict=True):
        if expected := _mismatch(entry, entry_kind):
            return f"a list in which each is {expected}"
    return ""
