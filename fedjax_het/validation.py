"""Ranges of numeric settings, written as annotations, and their check.

    @validate_arguments
    def proximal(mu: NonNegative = 0.01, form: str = "squared") -> Term: ...

A factory that is called with a number outside its range raises an InputError that begins with the argument's name.
Numbers that are not known yet (JAX tracers) pass, so that a factory may be called inside a transformed function.
"""

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, ParamSpec, TypeVar

import jax
import numpy as np

from fedjax_het.errors import InputError, shorten

P = ParamSpec("P")
R = TypeVar("R")

LARGEST_COUNT = 2**31 - 1  # compiled programs count in int32
LARGEST_NUMBER = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Range:
    """An interval of numbers; NaN is in none.

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
            return all(each in self for each in np.asarray(value).ravel().tolist())
        if isinstance(value, bool | np.bool_) or not isinstance(value, Integral if self.is_whole else Real):
            return False
        is_above = self.low < value if self.excludes_low else self.low <= value
        return bool(is_above and (value < self.high if self.excludes_high else value <= self.high))

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
Count = Annotated[int, Range(1, LARGEST_COUNT, is_whole=True)]
CountOrZero = Annotated[int, Range(0, LARGEST_COUNT, is_whole=True)]
Seed = CountOrZero


def validate_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that every call checks its arguments against the ranges in their annotations.

    The keys of `**rest: Unpack[SomeTypedDict]` are checked too. Defaults are taken as they are.

    Args:
        function: A function whose annotations hold ranges, alone, in unions or in sequences.

    Returns:
        The function with the same signature; it raises InputError for the first argument outside its range.
    """
    kinds, signature = ranges(function), inspect.signature(function)

    @functools.wraps(function)
    def validated(*args: P.args, **kwargs: P.kwargs) -> R:
        given: dict[str, Any] = {}
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            is_rest = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            given |= value if is_rest else {name: value}
        check_ranges(kinds, given)
        return function(*args, **kwargs)

    return validated


def ranges(owner: Callable[..., Any] | type) -> dict[str, Any]:
    """The annotations of a function's arguments, or of a class's fields, that hold ranges, by name."""
    kinds = typing.get_type_hints(owner, include_extras=True)
    for kind in list(kinds.values()):
        if typing.get_origin(kind) is typing.Unpack:
            kinds |= typing.get_type_hints(typing.get_args(kind)[0], include_extras=True)
    return {name: kind for name, kind in kinds.items() if name != "return" and _has_range(kind)}


def check_ranges(kinds: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise InputError for the first value that is outside the range of its name.

    Args:
        kinds: Annotations with ranges by name, see `ranges`.
        values: What was given by name; names without an annotation are not looked at.
    """
    for name, value in values.items():
        if name in kinds and (expected := _mismatch(value, kinds[name])):
            raise InputError(f"{name}: must be {expected}, not {_describe(value)}.")


def _describe(value: Any) -> str:
    is_too_large = isinstance(value, float) and LARGEST_NUMBER < abs(value) < float("inf")
    return f"{shorten(value)}{', which is infinite in float32' if is_too_large else ''}"


def _has_range(kind: Any) -> bool:
    return any(isinstance(one, Range) for one in getattr(kind, "__metadata__", ())) or any(
        map(_has_range, typing.get_args(kind))
    )


def _mismatch(value: Any, kind: Any) -> str:
    """What the annotation wants where the value is not of it, and else nothing."""
    if isinstance(value, jax.core.Tracer):
        return ""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    kinds = sorted(typing.get_args(kind) if is_union else (kind,), key=lambda one: not _has_range(one))
    wanted = [_mismatch_one(value, one) for one in kinds]
    return "" if "" in wanted else " or ".join(dict.fromkeys(wanted))


def _mismatch_one(value: Any, kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    for limits in getattr(kind, "__metadata__", ()):
        if isinstance(limits, Range):
            return "" if value in limits else str(limits)
    if kind is types.NoneType:
        return "" if value is None else "None"
    if origin is typing.Literal:
        return "" if isinstance(value, str | bool) and value in inner else " or ".join(map(repr, inner))
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
    for one, its_kind in zip(value, kinds, strict=True):
        if wanted := _mismatch(one, its_kind):
            return f"a list in which each is {wanted}"
    return ""
