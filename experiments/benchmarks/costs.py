"""Costs of a compiled program, counted from the text of its optimized HLO.

XLA's own `cost_analysis` counts the body of a loop once. Here it counts as often as the loop runs, which the compiler
or a constant in the loop's condition says of some loops; of the others, the `jax.named_scope` around them tells it.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from .hlo import Instruction, count_bytes, element_types, first_shape, parse_program

_COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute", "ragged-all-to-all")
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota", "partition-id"}
_FREE |= {"replica-id", "opt-barrier", "add-dependency", "bitcast-convert"}
_PRECISIONS = ("default", "high", "highest")
_RESULT = -1
_CONVOLUTIONS = {  # where the output and the kernel of the forward convolution are, among the operands
    "convolution": (_RESULT, 1),
    "__cudnn$convForward": (_RESULT, 1),
    "__cudnn$convBiasActivationForward": (_RESULT, 1),
    "__cudnn$convBackwardInput": (0, 1),
    "__cudnn$convBackwardFilter": (1, _RESULT),
}
_PRODUCTS = ("dot", "__cublas$gemm", "__cublas$lt$matmul")


@dataclass(frozen=True)
class Costs:
    """The work of a program, estimated from shapes: reads that a cache saves are counted."""

    flop: Mapping[str, float] = field(default_factory=dict)
    """Multiplications and additions of matrix products and convolutions, by kind: "float64"; "default", "high" or
    "highest", the precision of products in float32; and "bfloat16", which stands for all narrower types."""
    bytes: float = 0.0  # read from and written to the device's main memory
    operations: float = 0.0  # that are started one by one: fusions, calls of libraries, copies, collectives
    collectives: Mapping[str, float] = field(default_factory=dict)  # kind -> bytes that each device receives

    @property
    def all_flop(self) -> float:
        return sum(self.flop.values())

    def __add__(self, other: "Costs") -> "Costs":
        return Costs(
            dict(Counter(self.flop) + Counter(other.flop)),
            self.bytes + other.bytes,
            self.operations + other.operations,
            dict(Counter(self.collectives) + Counter(other.collectives)),
        )

    def times(self, count: float) -> "Costs":
        flop, collectives = (
            {kind: size * count for kind, size in each.items()} for each in (self.flop, self.collectives)
        )
        return Costs(flop, self.bytes * count, self.operations * count, collectives)


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


class _Counter:
    def __init__(self, text: str, trips: Mapping[str, float]):
        self._computations, self._entry = parse_program(text)
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
            return max(costs, key=lambda each: (each.all_flop, each.bytes), default=Costs())
        if opcode in ("call", "async-start") and (
            called := instruction.called("to_apply") or instruction.called("calls")
        ):
            return self._costs(called)
        memory = Costs(bytes=self._bytes(instruction, types), operations=1)
        if opcode == "fusion":
            inside = self._costs(str(instruction.called("calls")))
            return memory + replace(inside, bytes=0.0, operations=0.0)
        kind = opcode.removesuffix("-start")
        if kind in _COLLECTIVES:
            received = count_bytes(instruction.type, is_anywhere=True)
            sent = sum(count_bytes(types[name], is_anywhere=True) for name in instruction.operands)
            if kind == "reduce-scatter":  # every device receives a part of the sum from each
                received = sent
            elif _holds_operands(opcode):
                received -= sent
            return memory + Costs(collectives={kind: received})
        return memory + Costs(flop=_count_flop(instruction, types))

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
        written = count_bytes(instruction.type)
        if instruction.opcode in ("dynamic-slice", "gather", "slice"):
            return 2 * written
        if updates := _updates(instruction):
            return 2 * count_bytes(types.get(updates, ""))
        reads = [count_bytes(types.get(operand, "")) for operand in instruction.operands]
        if instruction.opcode == "fusion":
            fused = self._computations[str(instruction.called("calls"))]
            for position, limit in _partial_reads(fused):
                if position < len(reads):
                    reads[position] = min(reads[position], limit)
            written = min(written, _partial_write(fused, written))
        elif instruction.opcode == "copy-start":
            return 2 * sum(reads)
        elif _holds_operands(instruction.opcode):
            return written
        return written + sum(reads)


def _holds_operands(opcode: str) -> bool:
    """Whether the type of a collective that other work overlaps holds what is sent beside what is received."""
    kind = opcode.removesuffix("-start")
    return kind != opcode and kind in _COLLECTIVES and kind != "all-reduce"


def _partial_reads(fused: list[Instruction]) -> Iterator[tuple[int, float]]:
    """(Position of a parameter, bytes that are read of it) where slices alone read it, or updates of a slice do."""
    for parameter in fused:
        if parameter.opcode != "parameter":
            continue
        readers = [each for each in fused if parameter.name in each.operands]
        sliced = [each for each in readers if _is_sliced(parameter, each)]
        if readers and len(sliced) + sum(_is_updated(parameter, each) for each in readers) == len(readers):
            yield int(parameter.attributes.split(")")[0]), sum(count_bytes(each.type) for each in sliced)


def _is_sliced(parameter: Instruction, reader: Instruction) -> bool:
    return reader.opcode in ("dynamic-slice", "gather", "slice") and reader.operands[0] == parameter.name


def _is_updated(parameter: Instruction, reader: Instruction) -> bool:
    return _updates(reader) is not None and reader.operands[0] == parameter.name


def _updates(instruction: Instruction) -> str | None:
    """The operand that replaces a part of the first one in place, which is not read or written elsewhere."""
    if instruction.opcode == "dynamic-update-slice":
        return instruction.operands[1]
    is_single = instruction.opcode == "scatter" and len(instruction.operands) == 3  # others scatter into several arrays
    return instruction.operands[2] if is_single else None


def _partial_write(fused: list[Instruction], written: float) -> float:
    """The bytes that a fusion writes, of which an update of a slice writes only the slice."""
    types = {each.name: each.type for each in fused}
    updates = [(each, name) for each in fused if (name := _updates(each))]
    if not updates or fused[-1].opcode not in ("dynamic-update-slice", "scatter", "bitcast", "tuple"):
        return written
    whole = sum(count_bytes(each.type) for each, _ in updates)
    return max(0.0, written - whole) + 2 * sum(count_bytes(types[name]) for _, name in updates)


def _count_flop(instruction: Instruction, types: Mapping[str, str]) -> dict[str, float]:
    """{kind: FLOP} of a product of matrices or a convolution, whether XLA or a library computes it; else {}."""
    called = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
    target = called[1] if called else instruction.opcode
    if target in _PRODUCTS:
        flop = 2.0 * math.prod(first_shape(instruction.type)) * _contracted(instruction, types)
    elif target in _CONVOLUTIONS:
        output, kernel = (
            instruction.type if place == _RESULT else types[instruction.operands[place]]
            for place in _CONVOLUTIONS[target]
        )
        flop = 2.0 * math.prod(first_shape(output)) * _summed(instruction, kernel)
    else:
        return {}
    return {_kind(instruction, types): flop}


def _contracted(product: Instruction, types: Mapping[str, str]) -> int:
    """The number of products that are summed for one element of a product of matrices."""
    sizes = first_shape(types[product.operands[0]])
    found = re.search(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[]([\d,"]*)[}\]]', product.attributes)
    return math.prod(sizes[int(axis)] for axis in found[1].replace('"', "").split(",") if axis) if found else 1


def _summed(convolution: Instruction, kernel: str) -> int:
    """The number of products that are summed for one element of a convolution's output."""
    labels = re.search(r"dim_labels=\w+_(\w+)->", convolution.attributes)
    inputs = first_shape(kernel)[labels[1].index("i")] if labels else 1
    window = re.search(r"window=\{([^}]*)\}", convolution.attributes)
    options = dict(part.split("=") for part in window[1].split()) if window else {}
    sizes = [int(size) for size in options.get("size", "").split("x") if size]
    dilations = [int(step) for step in options.get("lhs_dilate", "x".join("1" for _ in sizes)).split("x") if step]
    # Of a dilated input, only one in so many entries is not zero.
    return inputs * math.prod(-(-size // step) for size, step in zip(sizes, dilations, strict=True))


def _kind(product: Instruction, types: Mapping[str, str]) -> str:
    """The kind of a product, as `Costs.flop` names it."""
    dtypes = {dtype for operand in product.operands[:2] for dtype in element_types(types.get(operand, ""))}
    if "f64" in dtypes:
        return "float64"
    if "f32" not in dtypes:
        return "bfloat16"
    asked = re.search(r'operand_precision"?[=:][{\[]([^}\]]*)[}\]]', product.attributes)
    words = re.findall(r"\w+", asked[1].lower()) if asked else []
    return max((word for word in words if word in _PRECISIONS), key=_PRECISIONS.index, default="default")
