"""Which layer of a network is its low one: by name, or by a rule on paths and shapes."""

import re

from flax import traverse_util

from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Variables

_HEAD = "params/classifier/"
_STAGE = re.compile(r"params/(?:stage|layer)[_.]?\d+(?=[/._])")
_SHORTCUT = re.compile(r"shortcut|downsample")


def low_layer(shared: Variables, layer: str | None = None) -> str:
    """The path of one shared weight, "params/conv_0/kernel"; biases, scales and statistics are none.

    layer: such a path, with or without "params/" and the last name ("conv_0").
    None: the last convolution of the first residual stage (a stage_0 or layer1) outside its shortcuts; without stages
    the convolution with the fewest input channels, which is the first; without convolutions the encoder's first dense
    layer; without an encoder the head.
    Raises InputError for a layer that is not among the shared weights, and where there is none.
    """
    leaves = traverse_util.flatten_dict({"params": shared.get("params", {})}, sep="/")
    weights = {path: leaves[path].shape for path in sorted(leaves, key=_naturally) if leaves[path].ndim >= 2}
    if layer is not None:
        return _named(layer, list(weights))
    if not weights:
        raise InputError("layer: no weight of at least two axes is shared, so there is no low layer to watch.")
    encoder = {path: shape for path, shape in weights.items() if not path.startswith(_HEAD)} or weights
    convolutions = {path: shape for path, shape in encoder.items() if len(shape) > 2}
    stages = {path: match.group() for path in convolutions if (match := _STAGE.match(path))}
    if main := [path for path in stages if not _SHORTCUT.search(path)]:
        return [path for path in main if stages[path] == stages[main[0]]][-1]
    if convolutions:
        return min(convolutions, key=lambda path: convolutions[path][-2])
    return next(iter(encoder))


def _named(layer: str, paths: list[str]) -> str:
    wanted = layer.removeprefix("params/")
    for path in paths:
        if wanted in (path.removeprefix("params/"), path.removeprefix("params/").rpartition("/")[0]):
            return path
    raise InputError(f"layer: '{layer}' is no weight that the clients share. {nearest(layer, paths)}")


def _naturally(path: str) -> list:
    """conv_2 before conv_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]
