"""Functions that are the same but for some numbers, as one function of which: hyper-parameters as an array axis."""

from collections.abc import Callable, Sequence

import jax

from fedjax_het.alike.lookup import Lookup
from fedjax_het.alike.outline import Mark, outline
from fedjax_het.errors import Unlike
from fedjax_het.types import Array, PyTree

__all__ = ["as_one"]


def as_one(functions: Sequence[Callable[..., PyTree]]) -> Callable[..., PyTree]:
    """(which, *arguments) -> functions[which](*arguments) as one program; which: [] int32, and vmap may batch it.

    Each function is traced. Where all programs have a number of one type and shape in the same place, but not the same
    number, the one program looks it up: the same arithmetic on the same numbers, however they were come by.
    Raises Unlike for other operations or shapes: a rate of 0 that leaves a term out, a size, a number of steps.
    """

    def one(which: Array, *arguments: PyTree) -> PyTree:
        traced = [jax.make_jaxpr(function, return_shape=True)(*arguments) for function in functions]
        outlines = [list(outline(program)) for program, _ in traced]
        groups = _groups(outlines)
        if len(groups) > 1:
            raise Unlike("these programs differ in more than numbers.", groups)
        leaves = Lookup(outlines).run(traced[0][0], (), which, jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(traced[0][1]), leaves)

    return one


def _groups(outlines: Sequence[list[Mark]]) -> list[list[int]]:
    groups: list[list[int]] = []
    for index, each in enumerate(outlines):
        alike = (group for group in groups if _is_alike(outlines[group[0]], each))
        if (group := next(alike, None)) is not None:
            group.append(index)
        else:
            groups.append([index])
    return groups


def _is_alike(one: list[Mark], other: list[Mark]) -> bool:
    return len(one) == len(other) and all(a[:2] == b[:2] for a, b in zip(one, other, strict=True))
