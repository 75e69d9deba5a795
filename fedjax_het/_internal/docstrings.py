"""Parsing of the docstrings of algorithms, from which their documentation is made."""

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import NamedTuple

_SECTION = re.compile(r"^(Args|Returns|Raises|References):\n((?:[ ]{4}.*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+): ", re.MULTILINE)
_WIRE = "Wire: "


class ParsedDocstring(NamedTuple):
    title: str
    formula: list[str]
    wire: str  # the paragraph on what is sent and kept
    prose: list[str]  # the other paragraphs
    arguments: dict[str, str]  # the description of each argument
    references: str


def parse_docstring(function: Callable) -> ParsedDocstring:
    """Parse a docstring with sections in Google's style.

    The first line is the title, indented lines outside sections are the formula, and a paragraph that begins with
    "Wire: " says what is sent.
    """
    title, _, rest = (inspect.getdoc(function) or "").partition("\n")
    sections = {name: textwrap.dedent(body) for name, body in _SECTION.findall(f"{rest}\n")}
    rest = _SECTION.sub("", f"{rest}\n")
    formula = [line for line in rest.splitlines() if line.startswith("    ")]
    plain = "\n".join(line for line in rest.splitlines() if not line.startswith("    "))
    prose = [" ".join(paragraph.split()) for paragraph in re.split(r"(?<=\.)\n|\n\n", plain) if paragraph.strip()]
    paragraphs = [" ".join(each.split()) for each in plain.split("\n\n") if each.strip()]
    wire = next((each for each in paragraphs if each.startswith(_WIRE)), "")
    prose = [each for each in prose if each not in wire]
    _, *entries = _ENTRY.split(sections.get("Args", ""))
    arguments = {name: " ".join(text.split()) for name, text in zip(entries[::2], entries[1::2], strict=True)}
    references = " ".join(sections.get("References", "").split())
    return ParsedDocstring(title, formula, wire.removeprefix(_WIRE), prose, arguments, references)
