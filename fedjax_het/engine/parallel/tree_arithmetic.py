"""Arithmetic on all leaves of models as one call on CPUs, where XLA compiles a loop for each leaf.

A step of local training, the sum over clients, and the server's step do the same arithmetic on every leaf. For a
ResNet-18, those were two thirds of the loops of a round. `fuse` finds them.
"""

import graphlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.interpreters import partial_eval

from fedjax_het._internal import primitives
from fedjax_het.engine.parallel import arithmetic_call
from fedjax_het.engine.parallel.arithmetic_call import OPERATIONS, Step, aval_of
from fedjax_het.engine.parallel.layout import Layout

Atom = Var | Literal

_VIEWS = {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "copy"}  # where the size stays the same
_SCALAR_OPERATIONS = {"convert_element_type", "eq", "ne", "lt", "gt", "and", "not"}
_REDUCTIONS = {"reduce_sum", "reduce_max"}  # XLA reads them from memory, but computes them with what is before them
_IN_MEMORY = _REDUCTIONS | {
    *("dot_general", "conv_general_dilated", "while", "scan", "cond", "shard_map", "psum", "psum_invariant"),
    *("ffi_call", "optimization_barrier"),
}

_MIN_RESULTS = 2  # of a call
_MIN_SIZE = 5  # of an array; sums of losses are smaller, and are computed beside the gradients
_MAX_SIZE = 1 << 17  # of an array that several cores may share; a call keeps all gradients in memory


def fuse(jaxpr: Jaxpr, layout: Layout) -> Jaxpr:
    """The same function, whose arithmetic on several float32 arrays is one call. It does not compute what it ignores.

    Results are equal up to rounding, because XLA may round a product that is added to something, or not.

    Args:
        jaxpr: A function that is afterwards neither differentiated nor vectorized, for CPUs with the kernel.
        layout: The layout of the devices. Without a mesh, large arrays are left to XLA, which divides them among cores.
    """
    used, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    return _fuse_body(used, math.inf if layout.mesh else _MAX_SIZE)


def _fuse_body(jaxpr: Jaxpr, max_size: float, carried: Sequence[Var] = ()) -> Jaxpr:
    """Fuse the arithmetic of a body and of those inside it.

    Args:
        jaxpr: The body.
        max_size: The largest size of an array in a call.
        carried: The arguments whose memory the first results take in the next pass of a loop.
    """
    names: dict[Var, Atom] = {}
    equations = [_fuse_inner(equation, max_size) for equation in _inline(jaxpr.eqns, names)]
    jaxpr = jaxpr.replace(eqns=equations, outvars=[_rename(atom, names) for atom in jaxpr.outvars])
    return jaxpr.replace(eqns=_Body(jaxpr, max_size).fuse(carried))


def _fuse_inner(equation: JaxprEqn, max_size: float) -> JaxprEqn:
    """The equation with its bodies fused."""
    params, name = equation.params, equation.primitive.name

    def fuse(body: ClosedJaxpr, carried: slice = slice(0)) -> ClosedJaxpr:
        return ClosedJaxpr(_fuse_body(body.jaxpr, max_size, body.jaxpr.invars[carried]), body.consts)

    if name == "while":
        changed: dict[str, Any] = {"body_jaxpr": fuse(params["body_jaxpr"], slice(params["body_nconsts"], None))}
    elif name == "scan":
        body = params["jaxpr"].jaxpr
        end = _count_whole(equation.invars, body.invars)
        num_carried = _count_whole(equation.outvars, body.outvars)
        changed = {"jaxpr": fuse(params["jaxpr"], slice(end - num_carried, end))}
    elif name == "cond":
        changed = {"branches": tuple(map(fuse, params["branches"]))}
    elif name == "jit":
        changed = {"jaxpr": fuse(params["jaxpr"])}
    elif name == "shard_map":
        changed = {"jaxpr": _fuse_body(params["jaxpr"], max_size)}
    else:
        return equation
    return equation.replace(params=params | changed)


def _count_whole(outer: Sequence[Atom], inner: Sequence[Atom]) -> int:
    """How many arrays a scan passes whole to its body, or back."""
    return sum(aval_of(x).shape == aval_of(y).shape for x, y in zip(outer, inner, strict=True))


def _inline(equations: Iterable[JaxprEqn], names: dict[Var, Atom], *, is_inner: bool = False) -> Iterator[JaxprEqn]:
    """Replace calls of functions that only do arithmetic, such as `jnp.where`, by their equations.

    Args:
        equations: The equations.
        names: What replaces a variable, from now on.
        is_inner: The equations are those of such a function, whose variables have new names in each call.
    """
    for equation in equations:
        invars = [_rename(atom, names) for atom in equation.invars]
        if equation.primitive.name == "stop_gradient":  # derivatives have been taken
            names[equation.outvars[0]] = invars[0]
        elif _calls_arithmetic(equation):
            body = equation.params["jaxpr"].jaxpr
            inner: dict[Var, Atom] = dict(zip(body.invars, invars, strict=True))
            yield from _inline(body.eqns, inner, is_inner=True)
            names |= zip(equation.outvars, (_rename(atom, inner) for atom in body.outvars), strict=True)
        else:
            outvars = [Var(variable.aval) for variable in equation.outvars] if is_inner else equation.outvars
            names |= zip(equation.outvars, outvars, strict=True)
            yield equation.replace(invars=invars, outvars=outvars)


def _rename(atom: Atom, names: Mapping[Var, Atom]) -> Atom:
    return atom if isinstance(atom, Literal) else names.get(atom, atom)


def _calls_arithmetic(equation: JaxprEqn) -> bool:
    if equation.primitive.name != "jit" or equation.params["jaxpr"].consts:
        return False
    body, known = equation.params["jaxpr"].jaxpr, {*OPERATIONS, *_VIEWS, *_SCALAR_OPERATIONS}
    return not body.effects and all(x.primitive.name in known or _calls_arithmetic(x) for x in body.eqns)


class _Body:
    """The equations of a body, who makes and who uses their variables, and the steps that go into calls."""

    def __init__(self, jaxpr: Jaxpr, max_size: float):
        self._max_size, self._equations, self._results = max_size, jaxpr.eqns, jaxpr.outvars
        self._made = {variable: i for i, equation in enumerate(self._equations) for variable in equation.outvars}
        self._uses: dict[Var, list[int]] = {}
        for i, equation in enumerate(self._equations):
            for variable in _variables(equation):
                self._uses.setdefault(variable, []).append(i)
        self._next_effect = dict(pairwise(i for i, equation in enumerate(self._equations) if _is_ordered(equation)))
        self._steps = {i: step for i, equation in enumerate(self._equations) if (step := self._read_step(equation))}

    def fuse(self, carried: Sequence[Var]) -> list[JaxprEqn]:
        """The equations, in a new order, with calls in place of the steps."""
        self._exclude_divided()
        while True:
            groups = self._find_groups()
            small = [i for group in groups if len(self._find_results(group)) < _MIN_RESULTS for i in group]
            excluded = [i for i, step in self._steps.items() if not self._is_separate(step)] or small
            if not excluded:
                break
            for i in excluded:
                del self._steps[i]
        if not groups:
            return self._equations
        reused = {x: old for x, old in zip(self._results, carried, strict=False) if isinstance(x, Var)}
        nodes = [equation for i, equation in enumerate(self._equations) if i not in self._steps]
        for group in groups:
            steps = [self._steps[i] for i in group]
            nodes.append(arithmetic_call.make_call(steps, self._find_results(group), reused))
        made = {variable: i for i, equation in enumerate(nodes) for variable in equation.outvars}
        needs = {i: [made[x] for x in _variables(equation) if x in made] for i, equation in enumerate(nodes)}
        for before, after in pairwise(i for i, equation in enumerate(nodes) if _is_ordered(equation)):
            needs[after].append(before)
        return [nodes[i] for i in graphlib.TopologicalSorter(needs).static_order()]

    def _read_step(self, equation: JaxprEqn) -> Step | None:
        """The equation as a step; None if it is not one."""
        name, operands = equation.primitive.name, equation.invars
        if name == "square" or (name == "integer_pow" and equation.params["y"] == 2):
            name, operands = "mul", operands * 2
        name = "add" if name == "add_any" else name
        if name not in OPERATIONS or (name == "select_n" and len(operands) != 3):
            return None
        operands, (result,) = list(map(self._find_scalar, operands)), equation.outvars
        if aval_of(result).dtype != jnp.float32 or not _MIN_SIZE <= aval_of(result).size <= self._max_size:
            return None
        for position, operand in enumerate(operands):
            is_flag, aval = name == "select_n" and position == 0, aval_of(operand)
            if aval.dtype != (jnp.bool_ if is_flag else jnp.float32):
                return None
            if aval.size > 1 and (is_flag or aval.shape != aval_of(result).shape):
                return None
        numbers = (arithmetic_call.bits_of(x.val) if isinstance(x, Literal) else x for x in operands)
        return Step(name, tuple(numbers), result)

    def _find_scalar(self, atom: Atom) -> Atom:
        """The scalar that an array repeats; the array itself if its numbers differ."""
        repeated = atom
        while aval_of(repeated).size > 1 and (equation := self._find_equation(repeated)):
            if equation.primitive.name not in ("broadcast_in_dim", "reshape"):
                break
            repeated = equation.invars[0]
        return repeated if aval_of(repeated).size == 1 else atom

    def _find_equation(self, atom: Atom) -> JaxprEqn | None:
        """The equation that makes a value in this body."""
        return self._equations[self._made[atom]] if isinstance(atom, Var) and atom in self._made else None

    def _exclude_divided(self) -> None:
        """Exclude arrays that are divided among devices, which would be gathered for a call."""
        divided: set[Var] = set()
        for equation in self._equations:
            if equation.primitive.name == "shard_map":
                specs = *equation.params["in_specs"], *equation.params["out_specs"]
                pairs = zip(specs, (*equation.invars, *equation.outvars), strict=True)
                divided |= {x for spec, x in pairs if any(spec) and isinstance(x, Var)}
        others = [equation for equation in self._equations if equation.primitive.name != "shard_map"]
        for equation in reversed(others):
            if divided.intersection(equation.outvars):
                divided |= {x for x in _variables(equation) if aval_of(x).size > 1}
        for equation in others:
            if divided.intersection(_variables(equation)):
                divided |= {x for x in equation.outvars if aval_of(x).size > 1}
        self._steps = {i: step for i, step in self._steps.items() if step.result not in divided}

    def _is_separate(self, step: Step) -> bool:
        """Whether XLA would not compute the step in one loop with other operations."""
        arrays = (x for x in step.operands if isinstance(x, Var) and aval_of(x).size > 1)
        return all(map(self._is_in_memory, arrays)) and self._is_read_from_memory(step.result)

    def _is_in_memory(self, atom: Atom) -> bool:
        equation = self._find_equation(atom)
        if equation is None:
            return isinstance(atom, Var)
        if self._made[cast(Var, atom)] in self._steps or _is_in_memory(equation):
            return True
        if equation.primitive.name == "transpose":  # of a product, which XLA transposes instead
            product = self._find_equation(equation.invars[0])
            return product is not None and product.primitive.name == "dot_general"
        return _is_view(equation) and self._is_in_memory(equation.invars[0])

    def _is_read_from_memory(self, variable: Var) -> bool:
        uses = ((i, self._equations[i]) for i in self._uses.get(variable, []))
        return all(
            i in self._steps
            or (_is_in_memory(equation) and equation.primitive.name not in _REDUCTIONS)
            or (_is_view(equation) and self._is_read_from_memory(equation.outvars[0]))
            for i, equation in uses
        )

    def _find_groups(self) -> list[list[int]]:
        """The steps in groups, each for one call: no step of a group waits for a call or another equation after it.

        Steps of a group have the same number of other equations on the longest way from them to a result.
        """
        distances: dict[int, int] = {}
        groups: dict[int, list[int]] = {}
        for i in reversed(range(len(self._equations))):
            users = [j for variable in self._equations[i].outvars for j in self._uses.get(variable, [])]
            users += [self._next_effect[i]] if i in self._next_effect else []
            distances[i] = max((distances[j] + (j not in self._steps) for j in users), default=0)
            if i in self._steps:
                groups.setdefault(distances[i], []).insert(0, i)
        return list(groups.values())

    def _find_results(self, group: list[int]) -> set[Var]:
        """The arrays that a group computes and others use."""
        own, inside = [self._steps[i].result for i in group], set(group)
        return {x for x in own if x in self._results or not inside.issuperset(self._uses.get(x, []))}


def _variables(equation: JaxprEqn) -> list[Var]:
    return [atom for atom in equation.invars if isinstance(atom, Var)]


def _is_in_memory(equation: JaxprEqn) -> bool:
    """Whether XLA writes the results of an equation, and reads its arguments, beside other loops."""
    return equation.primitive.name in _IN_MEMORY or equation.primitive in primitives.COMPILED


def _is_view(equation: JaxprEqn) -> bool:
    """Whether the result is the memory of the first argument."""
    is_known = equation.primitive.name in _VIEWS
    return is_known and aval_of(equation.invars[0]).size == aval_of(equation.outvars[0]).size


def _is_ordered(equation: JaxprEqn) -> bool:
    """Whether an equation has an effect besides that of collectives, which only says that there is a mesh."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in equation.effects)
