"""All there is in a traced program, as a list that can be compared with another program's."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from fedjax_het.alike.nested import CALLED

Program = ClosedJaxpr | Jaxpr
Path = tuple[int | str, ...]
"""Where something stands in a program: number of the equation, name of the program inside it, operand."""


class Mark(NamedTuple):
    """One thing in a program.   what: all there is to it but its number, which is None for what has none."""

    path: Path
    what: Any
    number: np.ndarray | None = None


def outline(program: Program, path: Path = ()) -> Iterator[Mark]:
    """All there is in a program and in those inside it, in order; variables by the order in which they are bound."""
    jaxpr, constants = opened(program)
    names: dict[Var, int] = {}

    def bound(variables: Sequence[Var]) -> Mark:
        names.update({var: len(names) + i for i, var in enumerate(variables)})
        return Mark(path, [str(var.aval) for var in variables])

    def read(atom: Literal | Var, place: Path) -> Mark:
        return _number(atom.val, atom.aval.dtype, place) if isinstance(atom, Literal) else Mark(place, names[atom])

    yield bound([*jaxpr.constvars, *jaxpr.invars])
    for index, (variable, constant) in enumerate(zip(jaxpr.constvars, constants, strict=True)):
        yield _number(constant, variable.aval.dtype, (*path, "constant", index))
    for index, equation in enumerate(jaxpr.eqns):
        here = (*path, index)
        yield Mark(here, str(equation.primitive))
        yield from (read(atom, (*here, "operand", i)) for i, atom in enumerate(equation.invars))
        yield from _of_parameters(equation.primitive.name, equation.params, here)
        yield bound(equation.outvars)
    yield from (read(atom, (*path, "result", i)) for i, atom in enumerate(jaxpr.outvars))


def _of_parameters(primitive: str, parameters: Mapping[str, Any], here: Path) -> Iterator[Mark]:
    """Of calls the program alone: their rules of differentiation were applied, and those of batching follow from it."""
    for name in [CALLED[primitive]] if primitive in CALLED else sorted(parameters):
        values = parameters[name] if isinstance(parameters[name], (tuple, list)) else [parameters[name]]
        for index, value in enumerate(values):
            if isinstance(value, Program):
                yield from outline(value, (*here, name, index))
            else:
                is_array = isinstance(value, (np.ndarray, jax.Array))
                yield Mark((*here, name, index), np.asarray(value).tolist() if is_array else value)


def _number(value: Any, dtype: Any, path: Path) -> Mark:
    if jnp.issubdtype(dtype, jax.dtypes.extended):  # a key: no number that could be looked up
        return Mark(path, (str(dtype), np.asarray(jax.random.key_data(value)).tolist()))
    number = np.asarray(value, dtype)
    return Mark(path, (str(dtype), number.shape), number)


def opened(program: Program) -> tuple[Jaxpr, Sequence[Any]]:
    return (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())
