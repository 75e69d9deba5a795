"""Errors that users can fix, and helpers for their messages: what is wrong, where, and how to fix it."""

import difflib
from collections.abc import Iterable

_MAX_NAMES = 12  # listed in a message besides the most similar one


class InputError(ValueError):
    """An input (a file, a setting, a combination of components) cannot work. Raised before round 1."""


class MemoryBudgetError(InputError):
    """The requested computation does not fit in the memory budget."""


class NonFiniteError(FloatingPointError):
    """A client sent NaN or infinity, and the run is set to stop at that."""


def shorten(value: object, max_length: int = 60) -> str:
    """The repr of a value for messages; a long one is cut in the middle."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= max_length else f"{text[: max_length // 2]}...{text[-max_length // 4 :]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence on an unknown name for messages: the most similar known name, and all of them unless there are many.

    The abbreviation of a name of several words is similar to it: "lr" to "learning_rate".
    """
    known = sorted(known)
    close = [candidate for candidate in known if name and abbreviate(candidate) == name] or difflib.get_close_matches(
        name, known, 1, 0.5
    )
    if close and len(known) > _MAX_NAMES:
        return f"Did you mean '{close[0]}'?"
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(known) if known else 'none'}."


def abbreviate(name: str) -> str:
    """The initials of the words of a name: "lr" for "learning_rate" or "algorithm.learning_rate", "" for one word."""
    words = name.rpartition(".")[2].split("_")
    return "".join(word[:1] for word in words) if len(words) > 1 else ""
