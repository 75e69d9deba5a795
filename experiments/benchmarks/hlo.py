"""Costs of a compiled program, counted from the text of its optimized HLO.

XLA's own `cost_analysis` counts the body of a loop once. Here it counts as often as the loop runs, which the compiler
or a constant in the loop's condition says of some loops; of the others, the `jax.named_scope` around them tells it.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2}
_BYTES |= {"f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8, "c64": 8, "c128": 16}
_COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute", "ragged-all-to-all")
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota", "partition-id"}
_FREE |= {"replica-id", "opt-barrier", "add-dependency", "bitcast-convert"}
_PASSES = {"highest": 6, "high": 3}  # products in bfloat16 that one product in float32 takes on a TPU

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


@dataclass(frozen=True)
class Costs:
    """The work of a program, estimated from shapes: reads that a cache saves are counted."""

    flop: float = 0.0  # multiplications and additions of matrix products and convolutions
    product_passes: float = 0.0  # the same, times the products in bfloat16 that each takes
    bytes: float = 0.0  # read from and written to the device's main memory
    collectives: Mapping[str, float] = field(default_factory=dict)  # kind -> bytes that each device receives

    def __add__(self, other: "Costs") -> "Costs":
        return Costs(
            self.flop + other.flop,
            self.product_passes + other.product_passes,
            self.bytes + other.bytes,
            dict(Counter(self.collectives) + Counter(other.collectives)),
        )

    def times(self, count: float) -> "Costs":
        collectives = {kind: size * count for kind, size in self.collectives.items()}
        return Costs(self.flop * count, self.product_passes * count, self.bytes * count, collectives)


class UnknownTripCountError(ValueError):
    """A loop has no known number of iterations and lies in no named scope with one."""


def count_costs(text: str, trips: Mapping[str, float]) -> Costs:
    """Count the costs of one call of a program.

    Args:
        text: The optimized HLO, `Compiled.as_text()`.
        trips: The number of iterations of the loops directly in each `jax.named_scope` whose bounds are computed at run
            time; "" is for all others.

    Returns:
        The costs, on one device.

    Raises:
        UnknownTripCountError: A loop is in none of these scopes.
    """
    return _Counter(text, trips).costs_of_entry()


def count_instructions(text: str) -> int:
    """Count the instructions in the text of a program."""
    return sum(bool(_INSTRUCTION.match(line)) for line in text.splitlines())


class _Counter:
    def __init__(self, text: str, trips: Mapping[str, float]):
        self._computations, self._entry = _parse(text)
        self._trips, self._known = trips, {}

    def costs_of_entry(self) -> Costs:
        return self._costs(self._entry)

    def _costs(self, name: str) -> Costs:
        if name not in self._known:
            types = {each.name: each.type for each in self._computations[name]}
            self._known[name] = sum((self._cost(each, types) for each in self._computations[name]), Costs())
        return self._known[name]

    def _cost(self, instruction: Instruction, types: Mapping[str, str]) -> Costs:
        opcode = instruction.opcode
        if opcode in _FREE or opcode.endswith("-done"):
            return Costs()
        if opcode == "while":
            body, condition = instruction.called("body"), instruction.called("condition")
            once = self._costs(str(body)) + self._costs(str(condition))
            return once.times(self._count_trips(instruction))
        if opcode == "conditional":
            branches = re.findall(r"%([\w.\-]+)", instruction.attributes.split("metadata")[0])
            costs = [self._costs(branch) for branch in branches if branch in self._computations]
            return max(costs, key=lambda each: (each.product_passes, each.bytes), default=Costs())
        if opcode in ("call", "async-start") and (
            called := instruction.called("to_apply") or instruction.called("calls")
        ):
            return self._costs(called)
        memory = Costs(bytes=self._bytes(instruction, types))
        if opcode == "fusion":
            inside = self._costs(str(instruction.called("calls")))
            return memory + replace(inside, bytes=0.0)
        kind = opcode.removesuffix("-start")
        if kind in _COLLECTIVES:  # the type of a start holds what is sent, too
            is_pair = opcode.endswith("-start") and instruction.type.startswith("(")
            received = _num_bytes(instruction.type, is_anywhere=True) / (2 if is_pair else 1)
            if kind == "reduce-scatter":  # every device receives a part of the sum from each
                received = sum(_num_bytes(types[name], is_anywhere=True) for name in instruction.operands)
            return memory + Costs(collectives={kind: received})
        if opcode in ("dot", "convolution"):
            flop = 2.0 * _num_elements(instruction.type) * _contracted(instruction, types)
            return memory + Costs(flop, flop * _count_passes(instruction, types))
        return memory

    def _count_trips(self, loop: Instruction) -> float:
        if known := re.search(r'known_trip_count"?:\{"n":"(\d+)"', loop.attributes):
            return float(known[1])
        if bounds := self._constant_bounds(str(loop.called("condition"))):
            return max(bounds)
        path = re.search(r'op_name="([^"]*)"', loop.attributes)
        scopes = re.findall(r"[\w.]+", path[1]) if path else []
        scope = scopes[-2] if scopes[-1:] == ["while"] and len(scopes) > 1 else ""
        for name in (scope, ""):
            if name in self._trips:
                return self._trips[name]
        raise UnknownTripCountError(f"{loop.name} in {path[1] if path else 'an unnamed place'}")

    def _constant_bounds(self, condition: str) -> list[float]:
        """The positive constants that a loop's counter is below. The halves of an int64 are compared one by one."""
        instructions = self._computations[condition]
        constants = {each.name: each.attributes.split(")")[0] for each in instructions if each.opcode == "constant"}
        compared = [each.operands[1] for each in instructions if "direction=LT" in each.attributes]
        return [float(constants[name]) for name in compared if constants.get(name, "0") != "0"]

    def _bytes(self, instruction: Instruction, types: Mapping[str, str]) -> float:
        """Bytes of the result and of the operands, of which a slice or a gather reads no more than its result."""
        written = _num_bytes(instruction.type)
        if instruction.opcode in ("dynamic-slice", "gather", "slice"):
            return 2 * written
        if instruction.opcode == "dynamic-update-slice":
            return 2 * _num_bytes(types.get(instruction.operands[1], ""))
        reads = [_num_bytes(types.get(operand, "")) for operand in instruction.operands]
        if instruction.opcode == "fusion":
            fused = self._computations[str(instruction.called("calls"))]
            for position, limit in _partial_reads(fused):
                if position < len(reads):
                    reads[position] = min(reads[position], limit)
            written = min(written, _partial_write(fused, written))
        elif instruction.opcode == "copy-start":
            return 2 * sum(reads)
        return written + sum(reads)


def _partial_reads(fused: list[Instruction]) -> Iterator[tuple[int, float]]:
    """(Position of a parameter, bytes that are read of it) where slices alone read it, or updates of a slice do."""
    for parameter in fused:
        if parameter.opcode != "parameter":
            continue
        readers = [each for each in fused if parameter.name in each.operands]
        sliced = [each for each in readers if _is_sliced(parameter, each)]
        if readers and len(sliced) + sum(_is_updated(parameter, each) for each in readers) == len(readers):
            yield int(parameter.attributes.split(")")[0]), sum(_num_bytes(each.type) for each in sliced)


def _is_sliced(parameter: Instruction, reader: Instruction) -> bool:
    return reader.opcode in ("dynamic-slice", "gather", "slice") and reader.operands[0] == parameter.name


def _is_updated(parameter: Instruction, reader: Instruction) -> bool:
    return reader.opcode == "dynamic-update-slice" and reader.operands[0] == parameter.name


def _partial_write(fused: list[Instruction], written: float) -> float:
    """The bytes that a fusion writes, of which an update of a slice writes only the slice."""
    types = {each.name: each.type for each in fused}
    updates = [each for each in fused if each.opcode == "dynamic-update-slice"]
    if not updates or fused[-1].opcode not in ("dynamic-update-slice", "bitcast", "tuple"):
        return written
    whole = sum(_num_bytes(each.type) for each in updates)
    return max(0.0, written - whole) + 2 * sum(_num_bytes(types[each.operands[1]]) for each in updates)


def _parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
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


def _num_bytes(type: str, *, is_anywhere: bool = False) -> float:
    """The bytes of a type that lie in main memory, or anywhere; S(1) marks what a TPU keeps beside its cores."""
    arrays = _ARRAY.findall(type)
    return sum(
        _BYTES.get(dtype, 1 if dtype.startswith("f8") else 0) * _product(sizes)
        for dtype, sizes, at in arrays
        if is_anywhere or "S(" not in at
    )


def _num_elements(type: str) -> int:
    return sum(_product(sizes) for _, sizes, _ in _ARRAY.findall(type))


def _product(sizes: str) -> int:
    return math.prod(int(size) for size in sizes.split(",") if size)


def _contracted(product: Instruction, types: Mapping[str, str]) -> float:
    """The number of products that are summed for one element of a result."""
    if product.opcode == "dot":
        sizes = _ARRAY.findall(types[product.operands[0]])[0][1].split(",")
        found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", product.attributes)
        return math.prod(int(sizes[int(axis)]) for axis in found[1].split(",") if axis) if found else 1
    kernel = _ARRAY.findall(types[product.operands[1]])[0][1].split(",")
    labels = re.search(r"dim_labels=\w+_(\w+)->", product.attributes)
    inputs = int(kernel[labels[1].index("i")]) if labels else 1
    window = re.search(r"window=\{([^}]*)\}", product.attributes)
    options = dict(part.split("=") for part in window[1].split()) if window else {}
    sizes = [int(size) for size in options.get("size", "").split("x") if size]
    dilations = [int(step) for step in options.get("lhs_dilate", "x".join("1" for _ in sizes)).split("x") if step]
    # Of a dilated input, only one in so many entries is not zero.
    return inputs * math.prod(-(-size // step) for size, step in zip(sizes, dilations, strict=True))


def _count_passes(product: Instruction, types: Mapping[str, str]) -> int:
    precisions = re.search(r"operand_precision=\{([^}]*)\}", product.attributes)
    if not precisions or all("f32" not in types.get(operand, "") for operand in product.operands):
        return 1
    return max(_PASSES.get(each.strip(), 1) for each in precisions[1].split(","))
