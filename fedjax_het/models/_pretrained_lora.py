"""Models that begin with the low-rank adapters of files."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het.errors import InputError
from fedjax_het.models._adapter_terms import Term
from fedjax_het.models._hub import locate
from fedjax_het.models._lora import SHARED, init_terms, with_terms
from fedjax_het.models._peft_files import CONFIG, WEIGHTS, File, read_config, read_file, stack
from fedjax_het.models._pretrained import (
    Entry,
    Naming,
    choose_naming,
    fill,
    list_entries,
    list_shapes,
    name_in_memory,
    rename_keys,
    to_namings,
)
from fedjax_het.models._targets import choose_layers
from fedjax_het.sharing import HEAD
from fedjax_het.types import Array, Key, Leaf, Model, Params, Variables
from fedjax_het.validation import FractionBelowOne, validate_arguments


class _Placed(NamedTuple):
    terms: Mapping[str, Term]  # by layer
    whole: Mapping[str, Entry]  # by path of a leaf
    state: Mapping[str, Any]  # the file's arrays by key


@validate_arguments
def pretrained_lora(
    pretrained: str, *, dropout: FractionBelowOne | None = None, train_head: bool = True
) -> Callable[[Model], Model]:
    """Freeze a model, and begin with the low-rank adapters of the library peft's two files; see `lora`.

    Rank and scale of each layer are those of the files (r, lora_alpha, use_rslora, rank_pattern, alpha_pattern), and so
    are the layers. Layers that the files hold as a whole (modules_to_save) replace those of the model, and are trained.
    Where a layer of the files is several layers here, such as query, key and value, these begin with equal A. `fedavg`
    of such a model is FedIT.

    Args:
        pretrained: A directory with adapter_config.json and adapter_model.safetensors, or its name on a hub, see
            `locate`. The model itself begins with the weights that the adapters were made for.
        dropout: The dropout rate of the inputs of A (default None, that of the files).
        train_head: Whether the head, params/classifier, is trained, too (default True).

    Raises:
        InputError: A file cannot be read, holds something else than low-rank adapters (DoRA, biases), or has keys that
            are no layers of the model.
    """
    folder = locate(pretrained)
    config = read_config(folder / CONFIG)
    file = read_file(folder / WEIGHTS, config)

    def adapt(model: Model) -> Model:
        if model.published is None:
            raise InputError("pretrained_lora: this model has no names in published files. Use lora.")
        names = model.published.names

        @functools.cache
        def place(shapes: tuple[tuple[str, tuple[int, ...]], ...]) -> _Placed:
            leaves = {path: jax.ShapeDtypeStruct(shape, jnp.float32) for path, shape in shapes}
            return _place(file, leaves, choose_naming(leaves, names, file), folder)

        def place_in(variables: Variables) -> _Placed:
            return place(tuple((path, leaf.shape) for path, leaf in tree.leaves_by_path(variables).items()))

        def init(key: Key, inputs: Array) -> Variables:
            placed = place_in(jax.eval_shape(model.init, key, inputs))

            def init_term(layer: str, key: Key, kernel: Array) -> Params:
                term = placed.terms[layer]
                return {f"{SHARED}_{part}": jnp.asarray(getattr(term, part), kernel.dtype) for part in "ab"}

            choose_layers(model.layers(inputs), sorted(placed.terms))  # all can have terms
            leaves = init_terms(model, key, inputs, sorted(placed.terms), init_term)
            leaves |= {path: fill(leaves[path], placed.state, entry) for path, entry in placed.whole.items()}
            return tree.from_paths(leaves)

        def term_scale(variables: Variables, layer: str, name: str) -> float:
            return place_in(variables).terms[layer].scale

        whole = frozenset(key for key, value in file.items() if isinstance(value, np.ndarray))
        rule = _FrozenRule((f"*/{SHARED}_a", f"*/{SHARED}_b", *([HEAD] * train_head)), to_namings(names), whole)
        return with_terms(model, init, term_scale, config["lora_dropout"] if dropout is None else dropout, rule)

    return adapt


@dataclass(frozen=True, eq=False)
class _FrozenRule:
    """The leaves that neither match the patterns nor are whole layers of a file, by its keys."""

    patterns: tuple[str, ...]
    namings: tuple[Naming, ...]
    whole: frozenset[str]

    def __call__(self, leaf: Leaf) -> bool:
        if any(fnmatchcase(leaf.path, pattern) for pattern in self.patterns):
            return False
        placeholder = {leaf.path: jax.ShapeDtypeStruct((), jnp.float32)}
        for naming in self.namings:
            keys = list_shapes(list_entries(placeholder, naming).values())
            names = {name for key in keys for name in (key, name_in_memory(key, naming))}
            if names & self.whole or {name.removeprefix(naming.prefix) for name in names} & self.whole:
                return False
        return True


def _place(file: File, leaves: Mapping[str, Any], naming: Naming, folder: Path) -> _Placed:
    """The terms and whole leaves of a file in a model with these leaves.

    Raises:
        InputError: Keys are no layers of the model, or of another shape.
    """
    entries, state = rename_keys(file, leaves, naming)
    expected = list_shapes(entries.values())
    terms, whole = {}, {}
    for path, entry in entries.items():
        values = {key: state[key] for key in entry.keys if key in state}
        found, kernel = {key: term for key, term in values.items() if isinstance(term, Term)}, leaves[path]
        if found:
            layer = path.removeprefix("params/").removesuffix("/kernel")
            terms[layer] = _fit_term(entry, found, kernel.ndim)
            shape = (*terms[layer].a.shape[:-1], terms[layer].b.shape[-1])
            if not path.endswith("/kernel") or layer.partition("/")[0] == "classifier" or shape != kernel.shape:
                raise InputError(
                    f"pretrained_lora: the adapter of {next(iter(found))} in '{folder}' is for a layer {list(shape)}, "
                    f"and '{path}' {list(kernel.shape)} here can have no such adapter. Choose the network, and the "
                    "weights that the adapter was made for."
                )
        elif len(values) == len(entry.keys) and all(values[key].shape == expected[key] for key in values):
            whole[path] = entry
        elif values:
            shapes = ", ".join(f"{key} {list(value.shape)}" for key, value in values.items())
            raise InputError(
                f"pretrained_lora: '{folder}' has {shapes}, and '{path}' {list(kernel.shape)} does not fit. Choose "
                "the network, and the number of classes, that they were made for."
            )
    if unknown := sorted(state.keys() - expected.keys()):
        raise InputError(
            f"pretrained_lora: '{folder}' has {unknown[0]}, which is no layer of this model ({len(unknown)} such "
            "keys). Choose the network that the adapters were made for."
        )
    return _Placed(terms, whole, state)


def _fit_term(entry: Entry, terms: Mapping[str, Term], num_axes: int) -> Term:
    """The term of a layer, from those of the file's layers; the layer is one of them, a part of one, or several."""
    index, count = entry.part
    numbered = {entry.keys.index(key): term for key, term in terms.items()}
    term = stack(numbered, len(entry.keys))
    b = np.split(term.b, count, axis=-1)[index]
    a, b = (x.reshape(x.shape[-num_axes:]) for x in (term.a, b))
    return Term(a, b, term.scale)
