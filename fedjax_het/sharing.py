"""Rules for personal leaves of a model, which stay on their client and are never aggregated.

A rule is given the path of a leaf and the class of the layer that owns it, and chooses at least one leaf; only
`share_all` chooses none. Norm layers are recognized by their class, not by their name: two published implementations
look for "bn" in the name, and thereby share the four norm layers in the shortcut branches of a ResNet.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from flax import linen as nn

from fedjax_het import tree
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, Leaf, LeafRule, Model, Variables

Sharing = LeafRule
"""leaf -> whether it is personal."""
HEAD = "params/classifier/*"
"""The pattern of the head's leaves, by which methods split a model into head and body; `f"!{HEAD}"` is the body."""


class _PathRule(NamedTuple):
    patterns: tuple[str, ...]

    def __call__(self, leaf: Leaf) -> bool:
        return any(fnmatchcase(leaf.path, pattern) for pattern in self.patterns)

    def __repr__(self) -> str:
        return f"personal({', '.join(map(repr, self.patterns))})"


class _ExceptRule(NamedTuple):
    patterns: tuple[str, ...]

    def __call__(self, leaf: Leaf) -> bool:
        return not any(fnmatchcase(leaf.path, pattern) for pattern in self.patterns)

    def __repr__(self) -> str:
        return f"share_only({', '.join(map(repr, self.patterns))})"


class _LayerRule(NamedTuple):
    classes: tuple[type, ...]

    def __call__(self, leaf: Leaf) -> bool:
        return leaf.layer is not None and issubclass(leaf.layer, self.classes)


def share_all(leaf: Leaf) -> bool:
    """No leaf is personal."""
    del leaf
    return False


def whole_model(leaf: Leaf) -> bool:
    """Every leaf is personal, except for the empty leaves of `models.with_empty_parameter` and of outlines."""
    return not leaf.path.startswith(("outline/", "params/nothing/"))


def personal(*patterns: str) -> Sharing:
    """The leaves whose path matches one of the patterns are personal.

    Args:
        patterns: Patterns of the shell: personal("params/classifier/*").
    """

    return _PathRule(patterns)


def share_only(*patterns: str) -> Sharing:
    """The leaves whose path matches one of the patterns are shared, all others are personal.

    Args:
        patterns: Patterns of the shell: share_only("params/classifier/*").
    """

    return _ExceptRule(patterns)


def personal_layers(*classes: type) -> Sharing:
    """All leaves (parameters and statistics) of layers of these classes are personal.

    Args:
        classes: Classes of layers; subclasses count.
    """

    return _LayerRule(classes)


batch_norms = personal_layers(nn.BatchNorm)
"""The personal layers of FedBN."""
all_norms = personal_layers(nn.BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm, nn.RMSNorm)


class LeafGroups(NamedTuple):
    """The variables of a model by who changes them."""

    shared: Variables  # trained, sent and aggregated
    personal: Variables  # trained, and never sent
    base: Variables  # changed by the server alone
    frozen: Variables  # never changed


def group_leaves(model: Model, sharing: Sharing, variables: Variables, inputs: Array) -> LeafGroups:
    """Split the variables of a model by its own rules and a rule for personal leaves.

    A leaf that rules of both kinds choose is in `base` rather than frozen. Only trained leaves can be personal.

    Args:
        model: The model.
        sharing: The rule for personal leaves.
        variables: All variables of the model.
        inputs: Inputs of the model; only the shape is used.

    Raises:
        InputError: A rule chooses no leaf, see `personal_paths`, or no parameter is trained and shared.
    """
    layers, trained = model.layers(inputs), variables
    fixed = {}
    for name in ("base", "frozen"):
        rules, paths = getattr(model, name), tree.paths(variables)
        chosen = frozenset().union(*(_choose(f"model.{name}", rule, paths, layers) for rule in rules))
        trained, fixed[name] = tree.partition(trained, chosen.__contains__)
    if "params" not in trained:
        raise InputError("model.frozen: the rules freeze every parameter. Leave at least one to train.")
    personal = personal_paths(sharing, tree.paths(trained), layers)
    shared, own = tree.partition(trained, personal.__contains__)
    if "params" not in shared:
        kind = "trained parameter" if any(fixed.values()) else "parameter"
        raise InputError(f"sharing: the rule keeps every {kind} of the model personal. Let it share at least one.")
    return LeafGroups(shared, own, **fixed)


def personal_paths(sharing: Sharing, paths: list[str], layers: Mapping[str, type]) -> frozenset[str]:
    """Apply a rule to the leaves of a model.

    Args:
        sharing: `share_all`, or a rule that chooses at least one leaf of the model.
        paths: The paths of all leaves.
        layers: {path of a layer: its class}.

    Returns:
        The paths of the personal leaves.

    Raises:
        InputError: A pattern matches no leaf, or a rule other than `share_all` chooses none, and would silently train
            as if all leaves were shared.
    """
    chosen = _choose("sharing", sharing, paths, layers)
    if not chosen and sharing is not share_all:
        raise InputError(_describe_empty_choice(sharing, _owners(paths, layers), layers))
    return chosen


def _choose(option: str, rule: LeafRule, paths: list[str], layers: Mapping[str, type]) -> frozenset[str]:
    """The paths that a rule chooses; raises InputError if one of its patterns matches none."""
    for pattern in getattr(rule, "patterns", ()):
        if not any(fnmatchcase(path, pattern) for path in paths):
            raise InputError(f"{option}: no leaf of the model matches '{pattern}'. {nearest(pattern, paths)}")
    return frozenset(path for path, owner in _owners(paths, layers).items() if rule(Leaf(path, owner)))


def _owners(paths: list[str], layers: Mapping[str, type]) -> dict[str, type | None]:
    return {path: _owner(path, layers) for path in paths}


def _describe_empty_choice(sharing: Sharing, owners: Mapping[str, type | None], layers: Mapping[str, type]) -> str:
    """The message for a rule that chooses none of the leaves with these owners."""
    classes: tuple[type, ...] = getattr(sharing, "classes", ())
    if not classes:
        rule = getattr(sharing, "__name__", repr(sharing))
        return (
            f"sharing: the rule '{rule}' keeps none of the model's leaves personal "
            f"({', '.join(list(owners)[:3])}, ...). Let it choose at least one, or share everything: sharing=share_all."
        )
    class_names = " or ".join(_sorted_names(classes))
    without_leaves = [path for path, layer in layers.items() if issubclass(layer, classes)]
    description = f"no layer of class {class_names}"
    if without_leaves:
        description = f"layers of class {class_names}, but without parameters or statistics ({without_leaves[0]})"
    with_leaves = ", ".join(_sorted_names({owner for owner in owners.values() if owner})) or "none that is known"
    return (
        f"sharing: nothing would be personal: the model has {description}; the layers that have leaves are of class "
        f"{with_leaves}. Choose a model whose norm layers have leaves, such as norm='batch', or an algorithm that "
        "shares everything, such as fedavg."
    )


def _sorted_names(classes: Iterable[type]) -> list[str]:
    return sorted(kind.__name__ for kind in classes)


def _owner(path: str, layers: Mapping[str, type]) -> type | None:
    """The class of the innermost named layer above a leaf; a layer's path does not begin with "params/"."""
    parts = path.split("/")[1:-1]
    for end in range(len(parts), 0, -1):
        if (layer := layers.get("/".join(parts[:end]))) is not None:
            return layer
    return None
