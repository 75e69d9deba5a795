"""The text of a compiled program, optimized HLO, as instructions with their types."""

import math
import re
from typing import NamedTuple

_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2}
_BYTES |= {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8, "c64": 8, "c128": 16}

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"([a-z]+[0-9a-z]*)\[([\d,]*)\](\{[^}]*\})?")
_OPERAND = re.compile(r"%([\w.\-]+)")


class Instruction(NamedTuple):
    name: str
    type: str
    opcode: str
    operands: list[str]
    attributes: str

    def called(self, attribute: str) -> str | None:
        """The name of the computation that an attribute refers to."""
        found = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.attributes)
        return found[1] if found else None


def count_instructions(text: str) -> int:
    """Count the instructions in the text of a program."""
    return sum(bool(_INSTRUCTION.match(line)) for line in text.splitlines())


def parse_program(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Return {name of a computation: its instructions}, and the name of the computation that is the program."""
    computations, entry, current = {}, "", []
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            current = computations.setdefault(header[2], [])
            entry = header[2] if header[1] else entry
        elif found := _INSTRUCTION.match(line):
            type, rest = _split_type(found[3])
            opcode, _, rest = rest.partition("(")
            operands, attributes = _split_operands(rest)
            names = _OPERAND.findall(operands)
            # The number of a parameter stands where other instructions have operands.
            current.append(
                Instruction(found[2], type, opcode, names, attributes if names else operands + ")" + attributes)
            )
    return computations, entry


def _split_type(text: str) -> tuple[str, str]:
    """Split "f32[2]{0} add(...)" or "(f32[2]{0}, s32[]) while(...)" behind the type."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in "({") - (letter in ")}")
        if letter == " " and not depth:
            return text[:place], text[place + 1 :]
    return text, ""


def _split_operands(text: str) -> tuple[str, str]:
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[:place], text[place + 1 :]
    return text, ""


def count_bytes(type: str, *, is_anywhere: bool = False) -> float:
    """The bytes of a type that lie in main memory, or anywhere; S(1) marks what a TPU keeps beside its cores."""
    arrays = _ARRAY.findall(type)
    return sum(
        _BYTES.get(dtype, 1 if dtype.startswith("f8") else 0) * math.prod(_shape(sizes))
        for dtype, sizes, at in arrays
        if is_anywhere or "S(" not in at
    )


def first_shape(type: str) -> list[int]:
    """The shape of a type's first array; of what a library returns, the others are its room for work."""
    return _shape(_ARRAY.findall(type)[0][1])


def element_types(type: str) -> set[str]:
    """The types of the numbers in the arrays of a type, such as "f32"."""
    return {dtype for dtype, *_ in _ARRAY.findall(type)}


def _shape(sizes: str) -> list[int]:
    return [int(size) for size in sizes.split(",") if size]
