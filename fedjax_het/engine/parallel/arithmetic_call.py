"""Calls of a function in C++ that computes a list of operations on arrays, block by block."""

from collections import Counter
from collections.abc import Mapping, Set
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import JaxprEqn, Var, new_jaxpr_eqn

from fedjax_het._internal import kernels, primitives
from fedjax_het.types import Array

_SYMBOL = "arithmetic"
explain_missing_kernel = kernels.make_check(__file__, arithmetic=(_SYMBOL,))

OPERATIONS = ("add", "sub", "mul", "div", "max", "min", "neg", "sqrt", "select_n", "multiply_add")
"""Those of `Step`, with the names of JAX's; the last is a * b + c."""

_ARRAY, _SCALAR, _NUMBER = range(3)  # the kinds of inputs


class Step(NamedTuple):
    """An operation on float32 arrays of one shape, scalars, and numbers, which are given by `bits_of`."""

    operation: str
    operands: tuple[Var | int, ...]
    result: Var


def make_call(steps: list[Step], results: Set[Var], reused: Mapping[Var, Var]) -> JaxprEqn:
    """The equation that computes steps.

    Args:
        steps: The steps, in order.
        results: The arrays that other equations use.
        reused: The array whose memory a result should take, where possible.
    """
    program: list[int] = []
    arguments: dict[Var, int] = {}
    positions: dict[Var, int] = {}
    aliases: dict[int, int] = {}
    parts = _split(_contract(steps, results))
    last_use = {operand: step.result for part in parts for step in part for operand in step.operands}
    for part in parts:
        made = [step.result for step in part]
        inputs = dict.fromkeys(x for step in part for x in step.operands if x not in made)
        registers = {operand: i for i, operand in enumerate([*inputs, *made])}
        program += [len(inputs), len(part)]
        for operand in inputs:
            if isinstance(operand, Var):
                kind = _ARRAY if aval_of(operand).size > 1 else _SCALAR
                program += [kind, arguments.setdefault(operand, len(arguments))]
            else:
                program += [_NUMBER, operand]
        for step in part:
            from_ = [registers[x] for x in step.operands]
            program += [OPERATIONS.index(step.operation), *(from_ + from_[:1] * 2)[:3]]
            if step.result not in results:
                program.append(-1)
                continue
            program.append(positions.setdefault(step.result, len(positions)))
            old = reused.get(step.result)
            if old is not None and last_use.get(old) == step.result:
                aliases[arguments[old]] = positions[step.result]
    avals = tuple(ShapedArray(aval_of(x).shape, aval_of(x).dtype) for x in positions)
    params = {"program": tuple(program), "avals": avals, "aliases": tuple(aliases.items())}
    return new_jaxpr_eqn(list(arguments), list(positions), _call, params, set())


def aval_of(variable: Any) -> ShapedArray:
    """The shape and dtype of a variable or a literal."""
    return cast(ShapedArray, variable.aval)


def bits_of(number: float) -> int:
    """The bits of a float32; unlike numbers, those of 0 and -0 differ, and those of a NaN are equal to themselves."""
    return int(np.float32(number).view(np.int32))


def _contract(steps: list[Step], results: Set[Var]) -> list[Step]:
    """The steps, with a product that only one sum reads as a part of it."""
    num_uses = Counter(x for step in steps for x in step.operands)
    products = {x.result: x for x in steps if x.operation == "mul" and num_uses[x.result] == 1}
    kept = {step.result: step for step in steps}
    for step in steps:
        for product, other in (step.operands, step.operands[::-1]) if step.operation == "add" else ():
            if product in products and product not in results:
                del kept[products[product].result]
                kept[step.result] = Step("multiply_add", (*products[product].operands, other), step.result)
                break
    return list(kept.values())


def _split(steps: list[Step]) -> list[list[Step]]:
    """The steps of each set of arrays that depend on one another."""
    owners: dict[Var | int, list[Step]] = {}
    parts: dict[int, list[Step]] = {}
    for step in steps:
        joined = [step]
        for part in {id(owners[x]): owners[x] for x in step.operands if x in owners}.values():
            joined = parts.pop(id(part)) + joined
        owners |= {member.result: joined for member in joined}
        parts[id(joined)] = joined
    return list(parts.values())


def _call_kernel(*arrays: Array, program: tuple[int, ...], avals: tuple[ShapedArray, ...], aliases: tuple) -> Any:
    results = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    call = kernels.prepare_call(_SYMBOL, results, input_output_aliases=dict(aliases))
    return call(*arrays, program=np.array(program, np.int32))


_call = primitives.make_primitive(
    _SYMBOL, _call_kernel, lambda *_, avals, **__: list(avals), ("program", "avals", "aliases"), has_several=True
)
