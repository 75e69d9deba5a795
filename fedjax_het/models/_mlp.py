"""Fully connected networks."""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.models._dense import Dense
from fedjax_het.models._model import Network, NumClasses, from_flax, narrow_layers, scale_widths
from fedjax_het.models._norms import NormKind, norm
from fedjax_het.types import Array, Model
from fedjax_het.validation import Count, FractionBelowOne, Positive, validate_arguments


class MLP(Network):
    """Dense, norm, ReLU and dropout for each entry of `hidden`, then the classifier. Inputs are flattened."""

    hidden: tuple[int, ...]
    norm: NormKind
    dropout: float

    @nn.nowrap
    def narrowed(self, width: float) -> nn.Module:
        return self.clone(hidden=narrow_layers(self.hidden, width))

    @nn.compact
    def encode(self, x: Array, mask: Array, is_training: bool) -> Array:
        if jnp.issubdtype(x.dtype, jnp.integer):
            raise InputError("an MLP takes numbers, and was given tokens. Use a network for sequences, such as lstm.")
        x = x.reshape(x.shape[0], -1)
        for index, num_units in enumerate(self.hidden):
            x = Dense(num_units, kernel_init=nn.initializers.he_normal(), name=f"dense_{index}")(x)
            x = nn.relu(norm(self.norm, name=f"norm_{index}")(x, mask, is_training))
            x = nn.Dropout(self.dropout, deterministic=not is_training)(x)
        return x


@validate_arguments
def mlp(
    num_classes: NumClasses,
    hidden: Sequence[Count] = (128,),
    *,
    norm: NormKind = "none",
    dropout: FractionBelowOne = 0.0,
    width: Positive = 1.0,
) -> Model:
    """A multilayer perceptron on inputs [batch, ...] of any shape.

    Args:
        num_classes: The number of classes, tags, ranks or targets.
        hidden: The number of units of each layer. (): logistic regression, whose features are the inputs. Two classes
            then have two logits; a step changes their difference by twice as much as the logit of a model with a
            single output.
        norm: The norm after each hidden layer, see `norm`.
        dropout: The dropout rate of hidden layers.
        width: Multiplier of all entries of `hidden`.

    Raises:
        InputError: Values are invalid.
    """
    return from_flax(MLP(num_classes, scale_widths("hidden", hidden, width), norm, dropout))
