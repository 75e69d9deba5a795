"""Training some parameters and leaving the others alone."""

from fnmatch import fnmatchcase

import jax
import optax

from fedjax_het import tree
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Params, PyTree


def restricted(optimizer: optax.GradientTransformation, only: str | None) -> optax.GradientTransformation:
    """An optimizer that trains some parameters and leaves the others as they are, without decay or memory for them.

    only: a pattern for paths, "params/classifier/*"; with "!" in front, all parameters but those; None is all.
    Batch statistics move in every training pass, also those of layers that are not trained.
    Raises InputError, when training is traced, for a pattern that matches nothing or leaves nothing to train.
    """
    if only is None:
        return optimizer
    pattern, is_trained = only.removeprefix("!"), not only.startswith("!")

    def groups(params: Params) -> PyTree:
        matches = {path: fnmatchcase(path, pattern) for path in tree.paths({"params": params})}
        if not any(matches.values()):
            raise InputError(f"only: no parameter of the model matches '{pattern}'. {nearest(pattern, matches)}")
        if not any(is_match == is_trained for is_match in matches.values()):
            raise InputError(f"only: '{only}' leaves no parameter to train. Name fewer layers after the '!'.")
        frozen, trained = tree.partition(params, lambda path: matches[f"params/{path}"] == is_trained)
        return tree.merge(jax.tree.map(lambda _: "frozen", frozen), jax.tree.map(lambda _: "trained", trained))

    return optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, groups)
