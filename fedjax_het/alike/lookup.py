"""One program that stands for several: tables in place of the numbers in which they differ."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal, Var

from fedjax_het.alike.nested import NESTED, Leaves
from fedjax_het.alike.outline import Mark, Path, Program, opened
from fedjax_het.errors import Unlike
from fedjax_het.types import Array


class Lookup:
    """Evaluates the first program, with a table in place of every number that is another one in others."""

    def __init__(self, outlines: Sequence[list[Mark]]):
        self._num, places = len(outlines), zip(*outlines, strict=True)
        several = {marks[0].path: [mark.number for mark in marks] for marks in places if marks[0].number is not None}
        self._tables = {
            path: np.stack(numbers)
            for path, numbers in several.items()
            if len({number.tobytes() for number in numbers}) > 1
        }
        self._around = {path[:length] for path in self._tables for length in range(len(path))}

    def run(self, program: Program, path: Path, which: Array, leaves: Sequence[Array]) -> Leaves:
        jaxpr, constants = opened(program)

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
