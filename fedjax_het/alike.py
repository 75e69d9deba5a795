"""Functions that are the same but for some numbers, as one function of which: hyper-parameters as an array axis."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

from fedjax_het.errors import InputError
from fedjax_het.nested import CALLED, NESTED, Leaves
from fedjax_het.types import Array, PyTree

Program = ClosedJaxpr | Jaxpr
Path = tuple[int | str, ...]
"""Where something stands in a program: number of the equation, name of the program inside it, operand."""


class Unlike(InputError):
    """Programs that differ in more than numbers.   groups: the indices of those that do not."""

    def __init__(self, message: str, groups: list[list[int]]):
        super().__init__(message)
        self.groups = groups


def as_one(functions: Sequence[Callable[..., PyTree]]) -> Callable[..., PyTree]:
    """(which, *arguments) -> functions[which](*arguments) as one program; which: [] int32, and vmap may batch it.

    Each function is traced. Where all programs have a number of one type and shape in the same place, but not the same
    number, the one program looks it up: the same arithmetic on the same numbers, however they were come by.
    Raises Unlike for other operations or shapes: a rate of 0 that leaves a term out, a size, a number of steps.
    """

    def one(which: Array, *arguments: PyTree) -> PyTree:
        traced = [jax.make_jaxpr(function, return_shape=True)(*arguments) for function in functions]
        outlines = [list(_outline(program)) for program, _ in traced]
        groups = _groups(outlines)
        if len(groups) > 1:
            raise Unlike("these programs differ in more than numbers.", groups)
        leaves = _Lookup(outlines).run(traced[0][0], (), which, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(traced[0][1]), leaves)

    return one


# ---- are they alike? -------------------------------------------------------------------------------------------------
class _Mark(NamedTuple):
    """One thing in a program.   what: all there is to it but its number, which is None for what has none."""

    path: Path
    what: Any
    number: np.ndarray | None = None


def _groups(outlines: Sequence[list[_Mark]]) -> list[list[int]]:
    groups: list[list[int]] = []
    for index, outline in enumerate(outlines):
        alike = (group for group in groups if _is_alike(outlines[group[0]], outline))
        if (group := next(alike, None)) is not None:
            group.append(index)
        else:
            groups.append([index])
    return groups


def _is_alike(one: list[_Mark], other: list[_Mark]) -> bool:
    return len(one) == len(other) and all(a[:2] == b[:2] for a, b in zip(one, other, strict=True))


def _outline(program: Program, path: Path = ()) -> Iterator[_Mark]:
    """All there is in a program and in those inside it, in order; variables by the order in which they are bound."""
    jaxpr, constants = _opened(program)
    names: dict[Var, int] = {}

    def bound(variables: Sequence[Var]) -> _Mark:
        names.update({var: len(names) + i for i, var in enumerate(variables)})
        return _Mark(path, [str(var.aval) for var in variables])

    def read(atom: Literal | Var, place: Path) -> _Mark:
        return _number(atom.val, atom.aval.dtype, place) if isinstance(atom, Literal) else _Mark(place, names[atom])

    yield bound([*jaxpr.constvars, *jaxpr.invars])
    for index, (variable, constant) in enumerate(zip(jaxpr.constvars, constants, strict=True)):
        yield _number(constant, variable.aval.dtype, (*path, "constant", index))
    for index, equation in enumerate(jaxpr.eqns):
        here = (*path, index)
        yield _Mark(here, str(equation.primitive))
        yield from (read(atom, (*here, "operand", i)) for i, atom in enumerate(equation.invars))
        yield from _of_parameters(equation.primitive.name, equation.params, here)
        yield bound(equation.outvars)
    yield from (read(atom, (*path, "result", i)) for i, atom in enumerate(jaxpr.outvars))


def _of_parameters(primitive: str, parameters: Mapping[str, Any], here: Path) -> Iterator[_Mark]:
    """Of calls the program alone: their rules of differentiation were applied, and those of batching follow from it."""
    for name in [CALLED[primitive]] if primitive in CALLED else sorted(parameters):
        values = parameters[name] if isinstance(parameters[name], (tuple, list)) else [parameters[name]]
        for index, value in enumerate(values):
            if isinstance(value, Program):
                yield from _outline(value, (*here, name, index))
            else:
                is_array = isinstance(value, (np.ndarray, jax.Array))
                yield _Mark((*here, name, index), np.asarray(value).tolist() if is_array else value)


def _number(value: Any, dtype: Any, path: Path) -> _Mark:
    if jnp.issubdtype(dtype, jax.dtypes.extended):  # a key: no number that could be looked up
        return _Mark(path, (str(dtype), np.asarray(jax.random.key_data(value)).tolist()))
    number = np.asarray(value, dtype)
    return _Mark(path, (str(dtype), number.shape), number)


def _opened(program: Program) -> tuple[Jaxpr, Sequence[Any]]:
    return (program.jaxpr, program.consts) if isinstance(program, ClosedJaxpr) else (program, ())


# ---- the one program -------------------------------------------------------------------------------------------------
class _Lookup:
    """Evaluates the first program, with a table in place of every number that is another one in others."""

    def __init__(self, outlines: Sequence[list[_Mark]]):
        self._num, places = len(outlines), zip(*outlines, strict=True)
        several = {marks[0].path: [mark.number for mark in marks] for marks in places if marks[0].number is not None}
        self._tables = {
            path: np.stack(numbers)
            for path, numbers in several.items()
            if len({number.tobytes() for number in numbers}) > 1
        }
        self._around = {path[:length] for path in self._tables for length in range(len(path))}

    def run(self, program: Program, path: Path, which: Array, leaves: Sequence[Array]) -> Leaves:
        jaxpr, constants = _opened(program)

        def number(value: Any, place: Path) -> Any:
            # Made here, not outside: inside in_double a float64 table stays one.
            return jnp.asarray(self._tables[place])[which] if place in self._tables else value

        known = dict(zip(jaxpr.invars, leaves, strict=True))
        for index, (variable, constant) in enumerate(zip(jaxpr.constvars, constants, strict=True)):
            known[variable] = number(constant, (*path, "constant", index))

        def read(atom: Literal | Var, place: Path) -> Any:
            return number(atom.val, place) if isinstance(atom, Literal) else known[atom]

        for index, equation in enumerate(jaxpr.eqns):
            here = (*path, index)
            operands = [read(atom, (*here, "operand", i)) for i, atom in enumerate(equation.invars)]
            known.update(zip(equation.outvars, self._evaluate(jaxpr, index, here, which, operands), strict=True))
        return [read(atom, (*path, "result", i)) for i, atom in enumerate(jaxpr.outvars)]

    def _evaluate(self, jaxpr: Jaxpr, index: int, here: Path, which: Array, operands: Sequence[Array]) -> Leaves:
        equation = jaxpr.eqns[index]
        parameters = equation.params
        if not any((*here, name) in self._around for name in parameters):
            variables = [Var(atom.aval) for atom in equation.invars]
            alone = {"eqns": [equation.replace(invars=variables)], "invars": variables, "outvars": equation.outvars}
            return jax.core.eval_jaxpr(jaxpr.replace(constvars=[], **alone), (), *operands)

        def inside(name: str, number: int = 0) -> Callable[..., Leaves]:
            value = parameters[name]
            program = value[number] if isinstance(value, (tuple, list)) else value
            return lambda which, *leaves: self.run(program, (*here, name, number), which, leaves)

        name = equation.primitive.name
        if name not in NESTED:
            apart = [[each] for each in range(self._num)]
            raise Unlike(f"they differ inside '{name}', which is not known from inside.", apart)
        return NESTED[name](parameters, inside, which, operands)
