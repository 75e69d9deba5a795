"""Frozen leaves: the parts of a model that training leaves as they are."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn

from fedjax_het import tree
from fedjax_het.models._norms import BatchNorm
from fedjax_het.sharing import personal, share_only
from fedjax_het.types import Array, Context, Leaf, LeafRule, Model, Named, Variables
from fedjax_het.validation import validate_arguments


@validate_arguments
def freeze(leaves: str | Sequence[str] | LeafRule) -> Callable[[Model], Model]:
    """Freeze leaves of a model.

        freeze("*block_0/*")                   the parameters and statistics of a block
        freeze(fh.sharing.batch_norms)         those of all batch norms

    Frozen leaves exist once for all clients, have no gradient and no optimizer state, and are never sent; every
    algorithm then applies to the other leaves. A batch norm whose statistics are frozen uses them, and dropout inside a
    part that is frozen as a whole does nothing, in training, too; both hold for Linen layers.

    Args:
        leaves: Patterns of paths, or a rule of `fedjax_het.sharing`.

    Raises:
        InputError: When the model is initialized: a pattern matches no leaf, or no parameter is left to train.
    """
    rule = leaves if callable(leaves) else personal(*to_patterns(leaves))
    return lambda model: frozen_by(model, rule)


@validate_arguments
def train_only(leaves: str | Sequence[str]) -> Callable[[Model], Model]:
    """Freeze all leaves of a model except those whose path matches one of the patterns; see `freeze`.

        train_only("params/classifier/*")                  linear probing
        train_only(("params/classifier/*", "*/bias"))      BitFit: biases and head

    Args:
        leaves: Patterns of paths.

    Raises:
        InputError: When the model is initialized: a pattern matches no leaf.

    References:
        Ben Zaken, Goldberg and Ravfogel, BitFit: Simple Parameter-efficient Fine-tuning for Transformer-based Masked
        Language-models, ACL 2022.
    """
    return lambda model: frozen_by(model, share_only(*to_patterns(leaves)))


def no_adapter() -> Callable[[Model], Model]:
    """Leave a model as it is: all leaves are trained."""
    return lambda model: model


def to_patterns(leaves: str | Sequence[str]) -> tuple[str, ...]:
    """Several patterns, or a single one as a tuple."""
    return (leaves,) if isinstance(leaves, str) else tuple(leaves)


def frozen_by(model: Model, *rules: LeafRule) -> Model:
    """The model with further rules for frozen leaves."""

    def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
        def call_layer(call: Callable, args: tuple, options: dict, about: nn.module.InterceptorContext) -> Any:
            layer = about.module
            if about.method_name != "__call__" or not layer.path:
                return call(*args, **options)
            if isinstance(layer, nn.Dropout) and _is_frozen(layer.parent, rules):
                return args[0]
            if isinstance(layer, nn.BatchNorm) and _is_frozen(layer, rules, "batch_stats"):
                return _normalize_in_evaluation(layer, *args, **options)
            return call(*args, **options)

        if not context.is_training:
            return model.encode(variables, inputs, context)
        with nn.intercept_methods(call_layer):
            return model.encode(variables, inputs, context)

    return model._replace(encode=encode, frozen=(*model.frozen, *rules))


class _RuleOfOthers(NamedTuple):
    """A rule that does not choose leaves whose path matches one of the patterns in `spared`."""

    rule: LeafRule
    spared: tuple[str, ...]

    def __call__(self, leaf: Leaf) -> bool:
        return self.rule(leaf) and not any(fnmatchcase(leaf.path, pattern) for pattern in self.spared)

    @property
    def patterns(self) -> tuple[str, ...]:
        return getattr(self.rule, "patterns", ())


def spare_leaves(model: Model, *patterns: str) -> Model:
    """The model, whose rules do not freeze these leaves, which an adaptation of an algorithm adds."""
    return model._replace(frozen=tuple(_RuleOfOthers(rule, patterns) for rule in model.frozen))


def _is_frozen(layer: Any, rules: tuple[LeafRule, ...], collection: str | None = None) -> bool:
    """Whether all leaves of a layer, or of its nearest ancestor that has any, are frozen."""
    while isinstance(layer, nn.Module):
        variables = {name: leaves for name, leaves in layer.variables.items() if collection in (None, name)}
        if paths := tree.paths(variables):
            where = [path.replace("/", "/".join(("", *layer.path, "")), 1) for path in paths]
            return all(any(rule(Leaf(path, type(layer))) for rule in rules) for path in where)
        layer = layer.parent
    return False


def _normalize_in_evaluation(layer: nn.BatchNorm, x: Array, *args: Any, **options: Any) -> Array:
    if isinstance(layer, BatchNorm):  # (x, mask of examples, is_training)
        return jnp.asarray(layer.clone(parent=None).apply(layer.variables, x, args[0], False))
    return jnp.asarray(layer.clone(parent=None, use_running_average=True).apply(layer.variables, x))
