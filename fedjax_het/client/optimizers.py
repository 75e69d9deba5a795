"""Local optimizers as defined by PyTorch, to which the papers' settings refer, and training of selected parameters."""

from fnmatch import fnmatchcase
from typing import Annotated, Literal

import jax
import optax

from fedjax_het import tree
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, Params, PyTree
from fedjax_het.validation import FractionBelowOne, NonNegative, Range, may_be_nonzero, validate_arguments

Optimizer = optax.GradientTransformation
BETAS = (0.9, 0.999)
"""PyTorch's for Adam."""
Betas = tuple[FractionBelowOne, FractionBelowOne]
Rate = Annotated[float | Array, Range(0)] | optax.Schedule
"""A learning rate, or an optax schedule of the local steps."""


@validate_arguments
def torch_sgd(learning_rate: Rate, momentum: FractionBelowOne = 0.0, weight_decay: NonNegative = 0.0) -> Optimizer:
    """g <- g + decay w;  b <- momentum b + g;  w <- w - lr b.   Settings of 0 cost neither memory nor time."""
    buffer = [optax.trace(momentum)] if may_be_nonzero(momentum) else []
    return optax.chain(*_decay(weight_decay), *buffer, optax.scale_by_learning_rate(learning_rate))


@validate_arguments
def torch_adam(learning_rate: Rate, weight_decay: NonNegative = 0.0, betas: Betas = BETAS) -> Optimizer:
    """torch.optim.Adam: epsilon 1e-8, and weight decay that is added to the gradient, unlike AdamW."""
    moments = optax.scale_by_adam(*betas)
    return optax.chain(*_decay(weight_decay), moments, optax.scale_by_learning_rate(learning_rate))


@validate_arguments
def local_optimizer(
    optimizer: Optimizer | Literal["adam"] | None,
    learning_rate: Rate,
    momentum: FractionBelowOne = 0.0,
    weight_decay: NonNegative = 0.0,
    betas: Betas | None = None,
) -> Optimizer:
    """Build the optimizer of the settings: None is `torch_sgd`, "adam" is `torch_adam`, which ignores momentum.

    Args:
        optimizer: None, "adam", or any optax transformation, which is used unchanged.
        learning_rate: Learning rate of SGD and Adam.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD and Adam.
        betas: Betas of "adam". None: PyTorch's defaults.

    Raises:
        InputError: Another name, betas outside 0..1, or betas without effect.
    """
    if betas is not None and not isinstance(optimizer, str):
        raise InputError("betas: only Adam has betas. Set optimizer='adam', or remove betas.")
    if optimizer is None:
        return torch_sgd(learning_rate, momentum, weight_decay)
    return torch_adam(learning_rate, weight_decay, betas or BETAS) if isinstance(optimizer, str) else optimizer


def trainable_only(optimizer: optax.GradientTransformation, only: str | None) -> optax.GradientTransformation:
    """An optimizer that trains some parameters and leaves the others unchanged, without decay or state for them.

    Batch statistics are updated in every training pass, including those of layers that are not trained.

    Args:
        optimizer: Optimizer of the trained parameters.
        only: Pattern of paths, "params/classifier/*"; with a leading "!", all other parameters. None: all parameters.

    Raises:
        InputError: A pattern matches nothing or leaves nothing to train; raised when training is traced.
    """
    if only is None:
        return optimizer

    def groups(params: Params) -> PyTree:
        frozen, trained = partition_trained(params, only)
        return tree.merge(jax.tree.map(lambda _: "frozen", frozen), jax.tree.map(lambda _: "trained", trained))

    return optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, groups)


def partition_trained(params: Params, only: str | None) -> tuple[Params, Params]:
    """Split parameters, or a gradient, into (those that are fixed, those that are trained).

    Args:
        params: The parameters.
        only: A pattern as in `trainable_only`.

    Raises:
        InputError: The pattern matches nothing or leaves nothing to train.
    """
    if only is None:
        return {}, params
    pattern, is_trained = only.removeprefix("!"), not only.startswith("!")
    matches = {path: fnmatchcase(path, pattern) for path in tree.paths({"params": params})}
    if not any(matches.values()):
        raise InputError(f"only: no parameter of the model matches '{pattern}'. {nearest(pattern, matches)}")
    if not any(is_match == is_trained for is_match in matches.values()):
        raise InputError(f"only: '{only}' leaves no parameter to train. Name fewer layers after the '!'.")
    return tree.partition(params, lambda path: matches[f"params/{path}"] == is_trained)


def _decay(weight_decay: float) -> list[Optimizer]:
    return [optax.add_decayed_weights(weight_decay)] if may_be_nonzero(weight_decay) else []
