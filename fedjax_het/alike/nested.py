"""Primitives with programs inside, written again around other programs: loops, branches, calls."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from fedjax_het._internal.float64 import in_double
from fedjax_het.types import Array

Leaves = list[Array]
Inside = Callable[..., Leaves]
"""(name of the parameter, which of several, by default 0) -> (which, *leaves) -> leaves: the program written anew."""


def _inlined(name: str) -> Callable[..., Leaves]:
    return lambda parameters, inside, which, leaves: inside(name)(which, *leaves)


def _scan(parameters: Mapping[str, Any], inside: Inside, which: Array, leaves: Sequence[Array]) -> Leaves:
    first, last = parameters["num_consts"], parameters["num_consts"] + parameters["num_carry"]
    constants, start, rows = leaves[:first], leaves[first:last], leaves[last:]

    def step(carry: Leaves, row: Leaves) -> tuple[Leaves, Leaves]:
        out = inside("jaxpr")(which, *constants, *carry, *row)
        return out[: len(carry)], out[len(carry) :]

    how = {name: parameters[name] for name in ("length", "reverse", "unroll")}
    carry, out = jax.lax.scan(step, list(start), list(rows), **how)
    return [*carry, *out]


def _while(parameters: Mapping[str, Any], inside: Inside, which: Array, leaves: Sequence[Array]) -> Leaves:
    """One that was vmapped has a condition an entry of its first axes: those that are over stand still."""
    first, last = parameters["cond_nconsts"], parameters["cond_nconsts"] + parameters["body_nconsts"]
    of_condition, of_body, start = leaves[:first], leaves[first:last], leaves[last:]

    def is_on(carry: Leaves) -> Array:
        return inside("cond_jaxpr")(which, *of_condition, *carry)[0]

    def step(carry: Leaves) -> Leaves:
        after, entries = inside("body_jaxpr")(which, *of_body, *carry), is_on(carry)
        if not entries.ndim:
            return after
        fitting = [entries.reshape(entries.shape + (1,) * (x.ndim - entries.ndim)) for x in carry]
        return [jnp.where(on, new, old) for on, new, old in zip(fitting, after, carry, strict=True)]

    return jax.lax.while_loop(lambda carry: jnp.any(is_on(carry)), step, list(start))


def _cond(parameters: Mapping[str, Any], inside: Inside, which: Array, leaves: Sequence[Array]) -> Leaves:
    branches = [
        lambda *operands, number=number: inside("branches", number)(which, *operands)
        for number in range(len(parameters["branches"]))
    ]
    return jax.lax.switch(leaves[0], branches, *leaves[1:])


def _shard_map(parameters: Mapping[str, Any], inside: Inside, which: Array, leaves: Sequence[Array]) -> Leaves:
    mapped = jax.shard_map(
        inside("jaxpr"),
        mesh=parameters["mesh"],
        in_specs=(PartitionSpec(), *parameters["in_specs"]),
        out_specs=list(parameters["out_specs"]),
        check_vma=parameters["check_vma"],
    )
    return mapped(which, *leaves)


def _in_double(parameters: Mapping[str, Any], inside: Inside, which: Array, leaves: Sequence[Array]) -> Leaves:
    return in_double(inside("jaxpr"))(which, *leaves)


INLINED = {
    "jit": "jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
"""{primitive: its program}, where nothing else about it matters once it has been traced."""
CALLED = {**INLINED, "in_double": "jaxpr"}
NESTED = {name: _inlined(program) for name, program in INLINED.items()} | {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "shard_map": _shard_map,
    "in_double": _in_double,
}
"""{primitive: (parameters, inside, which, leaves) -> leaves}"""
