"""One kind of error for everything that a user can mend: what is wrong, where, and the usual fix."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something that was given (a file, a setting, a combination of parts) cannot work. Raised before round 1."""


class MemoryBudgetError(InputError):
    """What was asked for does not fit in the memory that was granted."""


class NonFiniteError(FloatingPointError):
    """A client sent NaN or infinity, and the run was asked to stop for that."""


def shorten(value: object, most: int = 60) -> str:
    """A value as messages show it: its repr, cut in the middle where that is long."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence for an unknown name: the nearest known one if there is one, and all that are known."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(known) if known else 'none'}."
