"""Low-rank terms of a model as arrays: what they add to the weights."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het.models._lora import LOCAL, SHARED
from fedjax_het.types import Model, Variables

_LEAVES = tuple(f"/{name}_{part}" for name in (SHARED, LOCAL) for part in "ab")


class Term(NamedTuple):
    """A low-rank term s A B: A [..., in, r], B [..., r, out]."""

    a: np.ndarray
    b: np.ndarray
    scale: float


def merge_adapters(model: Model, variables: Variables) -> Variables:
    """The variables of the network without low-rank terms that computes the same, with W + s A B in place of W."""
    leaves = tree.leaves_by_path(remove_adapters(variables))
    for layer, term in read_terms(model, variables).items():
        kernel = leaves[f"params/{layer}/kernel"]
        product = term.scale * np.tensordot(np.asarray(term.a, np.float64), term.b.reshape(term.b.shape[-2:]), 1)
        leaves[f"params/{layer}/kernel"] = jnp.asarray(np.asarray(kernel, np.float64) + product, kernel.dtype)
    return tree.from_paths(leaves)


def remove_adapters(variables: Variables) -> Variables:
    """The variables of the network without low-rank terms."""
    return tree.partition(variables, is_of_term)[0]


def is_of_term(path: str) -> bool:
    """Whether a leaf belongs to low-rank terms."""
    return path.startswith("adapter/") or path.endswith(_LEAVES)


def read_terms(model: Model, variables: Variables) -> dict[str, Term]:
    """{path of a layer: its low-rank term}; of several terms, their sum."""
    leaves, term_scale, found = tree.leaves_by_path(variables), model.term_scale, {}
    if term_scale is None:
        return {}
    for name in (SHARED, LOCAL):
        for path in (path for path in leaves if path.endswith(f"/{name}_a")):
            place = path.removesuffix(f"/{name}_a")
            layer = place.removeprefix("params/")
            a, b = (np.asarray(leaves[f"{place}/{name}_{part}"]) for part in "ab")
            found.setdefault(layer, []).append(Term(a, b, float(term_scale(variables, layer, name))))
    return {layer: _add_up([term for term in terms if term.scale] or terms[:1]) for layer, terms in found.items()}


def _add_up(terms: list[Term]) -> Term:
    scale = terms[0].scale
    if len(terms) == 1:
        return terms[0]
    a = np.concatenate([term.a for term in terms], axis=-1)
    return Term(a, np.concatenate([term.b * np.float32(term.scale / scale) for term in terms], axis=-2), scale)
