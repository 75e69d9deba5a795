"""Which leaves of a model are personal: they stay on their client and are never aggregated.

A rule looks at the leaf's path and at the class of the layer that owns it. Layers are known by their class, so a norm
layer in a shortcut branch counts as one whatever it is called (two published codes look for "bn" in the name, and
share the four norms of a ResNet's downsampling branches without saying so).
"""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from flax import linen as nn

from fedjax_het.errors import InputError, nearest


class Leaf(NamedTuple):
    path: str  # "params/block_0/norm/scale"
    layer: type | None  # the class of the layer that owns it; None where the model names no layer there


Sharing = Callable[[Leaf], bool]
"""Is this leaf personal?"""


def share_all(leaf: Leaf) -> bool:
    """Nothing is personal."""
    del leaf
    return False


def personal(*patterns: str) -> Sharing:
    """Leaves whose path matches one of the patterns: personal("params/classifier/*")."""

    def rule(leaf: Leaf) -> bool:
        return any(fnmatchcase(leaf.path, pattern) for pattern in patterns)

    rule.patterns = patterns
    return rule


def personal_layers(*classes: type) -> Sharing:
    """All leaves (parameters and statistics) of layers of these classes."""
    return lambda leaf: leaf.layer is not None and issubclass(leaf.layer, classes)


batch_norms = personal_layers(nn.BatchNorm)
"""FedBN's choice."""
all_norms = personal_layers(nn.BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm, nn.RMSNorm)


def personal_paths(sharing: Sharing, paths: list[str], layers: Mapping[str, type]) -> frozenset[str]:
    """Resolve a rule on a model's leaves.

    Raises InputError where a path pattern matches nothing: a rule that does nothing is a mistake in its spelling.
    """
    for pattern in getattr(sharing, "patterns", ()):
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise InputError(f"sharing: no leaf of the model matches '{pattern}'. {nearest(pattern, paths)}")
    return frozenset(path for path in paths if sharing(Leaf(path, _owner(path, layers))))


def _owner(path: str, layers: Mapping[str, type]) -> type | None:
    """The innermost named layer above a leaf; the collection ("params/") is not part of a layer's path."""
    parts = path.split("/")[1:-1]
    for end in range(len(parts), 0, -1):
        if (layer := layers.get("/".join(parts[:end]))) is not None:
            return layer
    return None
