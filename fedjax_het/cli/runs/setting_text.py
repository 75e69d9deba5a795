"""Settings as text: parsing of layouts, amounts of memory and lists of names, and their formatting."""

import re
from collections.abc import Iterable, Sequence

from fedjax_het._internal.docstrings import find_title
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.errors import InputError, nearest, shorten

_MAX_BYTES = 2**63
_NUMBER = r"([1-9]\d{0,8})"  # of devices or clients
_LAYOUT = re.compile(rf"(auto)|(vmapped)|(chunked)\({_NUMBER}\)|(sharded)\({_NUMBER}(?:,{_NUMBER})?\)")
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def algorithm_title(name: str) -> str:
    """Return an algorithm's name as printed in papers, "FedProx"; other names are returned unchanged."""
    return find_title(ALGORITHMS[name]) if name in ALGORITHMS else name


def parse_layout(text: str) -> tuple[str, tuple[int, ...]]:
    """Parse a layout: "sharded(2, 4)" -> ("sharded", (2, 4))."""
    match = _LAYOUT.fullmatch(text.replace(" ", ""))
    name, *numbers = [group for group in match.groups() if group] if match else [""]
    if not name:
        raise InputError(
            f"layout: cannot read {shorten(text)}. Write auto, vmapped, chunked(4), sharded(2) or sharded(2, 4)."
        )
    return name, tuple(int(number) for number in numbers)


def parse_size(name: str, text: str | None) -> int | None:
    """Parse an amount of memory into bytes: "8GB" -> 8_000_000_000; None -> None."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,18}(?:\.\d+)?)\s*([a-z]+)", text.strip(), re.IGNORECASE)
    unit = match and _UNITS.get(match[2].upper())
    if not unit or not 0 < (size := int(float(match[1]) * unit)) < _MAX_BYTES:
        raise InputError(f"{name}: cannot read {shorten(text)}. Write a number and KB, MB, GB, MiB or GiB: 8GB.")
    return size


def format_bytes(num_bytes: float | None) -> str:
    """Format an amount with three digits: 19_244 -> "19.2 kB"; None -> "unknown"."""
    if num_bytes is None:
        return "unknown"
    power = 0
    while abs(num_bytes) >= 999.5 and power < 5:
        num_bytes, power = num_bytes / 1000, power + 1
    return f"{num_bytes:.3g} {('B', 'kB', 'MB', 'GB', 'TB', 'PB')[power]}"


def parse_names(name: str, text: str, known: Iterable[str], others: Sequence[str] = ()) -> list[str]:
    """Parse a list of names, each kept once: "drift, norms" -> ["drift", "norms"].

    Args:
        name: The setting, for messages.
        text: The names, comma-separated.
        known: The names that there are.
        others: Further words that a message may propose.
    """
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for word in names:
        if word not in known:
            raise InputError(f"{name}: '{word}' is unknown. {nearest(word, [*known, *others])}")
    return names


def select_names(flag: str, text: str, known: Iterable[str]) -> list[str]:
    """Parse a flag with at least one of the known names, or "all" for all of them."""
    if text == "all":
        return list(known)
    if names := parse_names(flag, text, known, ["all"]):
        return names
    raise InputError(f"{flag}: '{text}' is unknown. {nearest(text, [*known, 'all'])}")


def short_name(key: str) -> str:
    """Return the name of a setting in a label: "mu" for algorithm.mu, "partition" for data.partition.name."""
    table, _, last = key.rpartition(".")
    return table.rpartition(".")[2] if last == "name" and "." in table else last
