"""Errors that users can mend, and helpers for their messages: what is wrong, where, and how to mend it."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """An input (a file, a setting, a combination of components) cannot work. Raised before round 1."""


class MemoryBudgetError(InputError):
    """The requested computation does not fit in the memory budget."""


class NonFiniteError(FloatingPointError):
    """A client sent NaN or infinity, and the run is set to stop at that."""


def shorten(value: object, most: int = 60) -> str:
    """The repr of a value for messages; a long one is cut in the middle."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence on an unknown name for messages: the most similar known name, if there is one, and all known names."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(known) if known else 'none'}."
