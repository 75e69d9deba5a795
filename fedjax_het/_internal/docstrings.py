"""Parsing of the docstrings of algorithms, from which their documentation is made."""

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import NamedTuple

_SECTION = re.compile(r"^(Args|Returns|Raises|References):\n((?:[ ]{4}.*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+): ", re.MULTILINE)
_COMMUNICATION = "Communication: "


class ParsedDocstring(NamedTuple):
    title: str
    formula: list[str]
    communication: str  # the paragraph on what is sent and stored
    prose: list[str]  # the other paragraphs
    arguments: dict[str, str]  # the description of each argument
    references: str


def parse_docstring(function: Callable) -> ParsedDocstring:
    """Parse a docstring with sections in Google's style.

    The first line is the title, indented lines outside sections are the formula, and a paragraph that begins with
    "Communication: " describes the messages, and the state of clients and server between rounds.
    """
    title, _, rest = (inspect.getdoc(function) or "").partition("\n")
    sections = {name: textwrap.dedent(body) for name, body in _SECTION.findall(f"{rest}\n")}
    rest = _SECTION.sub("", f"{rest}\n")
    formula = [line for line in rest.splitlines() if line.startswith("    ")]
    plain = "\n".join(line for line in rest.splitlines() if not line.startswith("    "))
    prose = [" ".join(paragraph.split()) for paragraph in re.split(r"(?<=\.)\n|\n\n", plain) if paragraph.strip()]
    paragraphs = [" ".join(paragraph.split()) for paragraph in plain.split("\n\n")]
    communication = next((paragraph for paragraph in paragraphs if paragraph.startswith(_COMMUNICATION)), "")
    prose = [paragraph for paragraph in prose if paragraph not in communication]
    _, *entries = _ENTRY.split(sections.get("Args", ""))
    arguments = {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}
    references = " ".join(sections.get("References", "").split())
    communication = communication.removeprefix(_COMMUNICATION)
    return ParsedDocstring(title, formula, communication, prose, arguments, references)


def find_title(algorithm: Callable) -> str:
    """Return the name of an algorithm as papers print it, such as "FedLD"."""
    return parse_docstring(algorithm).title.partition(":")[0]
