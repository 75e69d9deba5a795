"""Which leaves of a model are personal: they stay on their client and are never aggregated.

A rule looks at the leaf's path and at the class of the layer that owns it, and chooses at least one leaf; `share_all`
alone, known by identity, chooses none. Layers are known by their class, so a norm
layer in a shortcut branch counts as one whatever it is called (two published codes look for "bn" in the name, and
share the four norms of a ResNet's downsampling branches without saying so).
"""

from collections.abc import Callable, Iterable, Mapping
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

    def rule(leaf: Leaf) -> bool:
        return leaf.layer is not None and issubclass(leaf.layer, classes)

    rule.classes = classes
    return rule


batch_norms = personal_layers(nn.BatchNorm)
"""FedBN's choice."""
all_norms = personal_layers(nn.BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm, nn.RMSNorm)


def personal_paths(sharing: Sharing, paths: list[str], layers: Mapping[str, type]) -> frozenset[str]:
    """Resolve a rule on a model's leaves.

    Args:
        sharing: `share_all`, or a rule that chooses at least one leaf of the model.
        paths: of all leaves.
        layers: {path of a layer: its class}.
    Returns:
        The paths of the personal leaves.
    Raises:
        InputError: a path pattern that matches no leaf, and any rule but `share_all` that chooses none: it would train
            as if everything were shared, without a word.
    """
    for pattern in getattr(sharing, "patterns", ()):
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise InputError(f"sharing: no leaf of the model matches '{pattern}'. {nearest(pattern, paths)}")
    owners = {path: _owner(path, layers) for path in paths}
    chosen = frozenset(path for path, owner in owners.items() if sharing(Leaf(path, owner)))
    if not chosen and sharing is not share_all:
        raise InputError(_nothing_chosen(sharing, owners, layers))
    return chosen


def _nothing_chosen(sharing: Sharing, owners: Mapping[str, type | None], layers: Mapping[str, type]) -> str:
    """What is wrong and how to mend it, of a rule that chooses none of the leaves with these owners."""
    classes: tuple[type, ...] = getattr(sharing, "classes", ())
    if not classes:
        rule = getattr(sharing, "__name__", repr(sharing))
        return (
            f"sharing: the rule '{rule}' keeps none of the model's leaves personal "
            f"({', '.join(list(owners)[:3])}, ...). Let it choose at least one, or share everything: sharing=share_all."
        )
    wanted = " or ".join(_names(classes))
    bare = [path for path, layer in layers.items() if issubclass(layer, classes)]
    found = f"no layer of class {wanted}"
    if bare:
        found = f"layers of class {wanted}, but without parameters or statistics ({bare[0]})"
    with_leaves = ", ".join(_names({owner for owner in owners.values() if owner is not None})) or "none that is known"
    return (
        f"sharing: nothing would be personal: the model has {found}; the layers that have leaves are of class "
        f"{with_leaves}. Choose a model whose norm layers have leaves, such as norm='batch', or an algorithm that "
        "shares everything, such as fedavg."
    )


def _names(classes: Iterable[type]) -> list[str]:
    return sorted(each.__name__ for each in classes)


def _owner(path: str, layers: Mapping[str, type]) -> type | None:
    """The innermost named layer above a leaf; the collection ("params/") is not part of a layer's path."""
    parts = path.split("/")[1:-1]
    for end in range(len(parts), 0, -1):
        if (layer := layers.get("/".join(parts[:end]))) is not None:
            return layer
    return None
