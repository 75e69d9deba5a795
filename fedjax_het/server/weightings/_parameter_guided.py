"""Weights from the change of a low layer and from validation losses (FedRD)."""

import re
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Weighting
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, PyTree, ServerView, Variables
from fedjax_het.validation import CountOrZero, validate_arguments

_HEAD = "params/classifier/"
_STAGE = re.compile(r"params/(?:stage|layer)[_.]?\d+(?=[/._])")
_SHORTCUT = re.compile(r"shortcut|downsample")


def low_layer(shared: Variables, layer: str | None = None) -> str:
    """The path of a shared weight, such as "params/conv_0/kernel"; not a bias, scale or statistic.

    None: the last convolution of the first residual stage (a stage_0 or layer1) outside its shortcuts; without stages
    the first convolution, which has the fewest input channels; without convolutions the encoder's first dense layer;
    without an encoder the head.

    Args:
        shared: The shared variables.
        layer: A path, with or without "params/" and the last name ("conv_0").

    Raises:
        InputError: The layer is not among the shared weights, or there are none.
    """
    leaves = tree.leaves_by_path({"params": shared.get("params", {})})
    weights = {path: leaves[path].shape for path in sorted(leaves, key=_natural_order) if leaves[path].ndim >= 2}
    if layer is not None:
        return _find_layer(layer, list(weights))
    if not weights:
        raise InputError("layer: no weight with at least two axes is shared, so there is no low layer.")
    encoder = {path: shape for path, shape in weights.items() if not path.startswith(_HEAD)} or weights
    convolutions = {path: shape for path, shape in encoder.items() if len(shape) > 2}
    stages = {path: match.group() for path in convolutions if (match := _STAGE.match(path))}
    if main := [path for path in stages if not _SHORTCUT.search(path)]:
        return [path for path in main if stages[path] == stages[main[0]]][-1]
    if convolutions:
        return min(convolutions, key=lambda path: convolutions[path][-2])
    return next(iter(encoder))


def _find_layer(layer: str, paths: list[str]) -> str:
    name = layer.removeprefix("params/")
    for path in paths:
        if name in (path.removeprefix("params/"), path.removeprefix("params/").rpartition("/")[0]):
            return path
    raise InputError(f"layer: '{layer}' is not a weight that the clients share. {nearest(layer, paths)}")


def _natural_order(path: str) -> list:
    """conv_2 before conv_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]


NEGLIGIBLE = 1e-8  # the authors' limit on the sum of distances


def _cosine(start: Array, changes: Array) -> Array:
    trained = start + changes
    lengths = jnp.linalg.norm(start) * jnp.linalg.norm(trained, axis=1)
    return jnp.where(lengths > 0, 1 - trained @ start / tree.positive_or_one(lengths), 0)


Distance = Literal["l2", "cosine"]
DISTANCES: dict[Distance, Callable[[Array, Array], Array]] = {
    "l2": lambda start, changes: jnp.sqrt(jnp.sum(jnp.square(changes), axis=1)),
    "cosine": _cosine,
}


@validate_arguments
def parameter_guided(
    layer: str | None = None, distance: Distance = "l2", official_n_extra: CountOrZero = 0
) -> Weighting:
    """Upweight clients whose low layer changed little and on which the received model performed badly.

        w_i = 1/2 ((1 - beta_i) / (N - 1) + gamma_i / sum_j gamma_j)
        beta_i = d_i / sum_j d_j,   d_i = ||Phi - Phi_i||,   gamma_i = sigmoid(GAP_i)

    Shapes: [cohort]. N is the number of present clients; a single client has weight 1. Distances that sum to less than
    1e-8 count as equal, as do gammas that have all underflowed.
    Reads: the updates of the layer, reports["gap"] [cohort] (`measures.training_gain`).

    Args:
        layer: The layer Phi, a path or None, see `low_layer`; its bias is ignored.
        distance: "l2", or "cosine" for 1 - cos.
        official_n_extra: Number of non-participating models that the authors' code counts in N (1: the held-out
            domain). The weights then sum to less than one, 5/6 for three clients: aggregate with `sum_of_models`.

    Raises:
        InputError: The distance or layer is unknown, or official_n_extra is not a count.

    References:
        FedRD: Reducing Divergences for Generalized Federated Learning; official code Kailee-WANG/NeurIPS25-FedRD,
        utils/fed_merge.py.
    """

    def init(shared: Variables, num_clients: int) -> PyTree:
        low_layer(shared, layer)  # raises for a wrong name before anything runs
        return ()

    def update(state: PyTree, view: ServerView) -> tuple[Array, PyTree]:
        path = low_layer(view.received.shared, layer)
        start = tree.leaves_by_path(view.received.shared)[path].ravel()
        (changes,) = jax.tree.leaves(view.updates.select(lambda name: name == path).tensors())
        distances = DISTANCES[distance](start, changes.reshape(changes.shape[0], -1))
        return guided_weights(distances, view.uploads.reports["gap"], view.is_present, official_n_extra), state

    return Weighting(init, update, reads="tensors")


def guided_weights(distances: Array, gaps: Array, is_present: Array, official_n_extra: int = 0) -> Array:
    """[cohort] from d_i and GAP_i, see `parameter_guided`."""
    num_models = jnp.sum(is_present) + official_n_extra
    near = (1 - shares(distances, is_present, NEGLIGIBLE, official_n_extra)) / jnp.maximum(num_models - 1, 1)
    served_badly = shares(jax.nn.sigmoid(gaps), is_present)
    weights = jnp.where(num_models > 1, (near + served_badly) / 2, 1)
    return jnp.where(is_present, weights, 0)


def shares(values: Array, is_present: Array, negligible: float = 0.0, num_extra: int = 0) -> Array:
    """[cohort]: each value's fraction of the total over present clients; equal parts if the total is negligible."""
    values = jnp.where(is_present, values, 0)
    total = jnp.sum(values)
    is_something = total > negligible
    equal = 1 / jnp.maximum(jnp.sum(is_present) + num_extra, 1)
    return jnp.where(is_something, values / jnp.where(is_something, total, 1), equal)
