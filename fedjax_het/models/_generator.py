"""Models with a generator of features, which the server alone changes (FedGen)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het.generation import init_generator
from fedjax_het.models._adaptations import vector_shapes, with_feature_shape
from fedjax_het.sharing import personal
from fedjax_het.types import Array, Context, Key, Model, Named, Variables
from fedjax_het.validation import Count, validate_arguments


@validate_arguments
def with_generator(hidden: Count = 256, noise: Count = 32) -> Callable[[Model], Model]:
    """Add a generator of features to a model, for the server to train.

    The leaves generator/network/... are those of `generation.init_generator`, and generator/labels [class] are 1 for
    the classes that it has been trained on, initially none. The server alone changes them, and sends them to clients.

    Args:
        hidden: The number of hidden units.
        noise: The number of random inputs.

    Raises:
        InputError: Features are maps.

    References:
        Zhu, Hong and Zhou, Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021.
        arXiv:2105.10056
    """

    def adapt(model: Model) -> Model:
        inner = with_feature_shape(model)

        def init(key: Key, inputs: Array) -> Variables:
            variables = inner.init(key, inputs)
            features, logits = vector_shapes("the generator", inner, variables, inputs)
            sizes = logits.shape[-1], features.shape[-1]
            network = init_generator(jax.random.fold_in(key, 1), *sizes, hidden, noise)
            generator = {"network": network, "labels": jnp.zeros(logits.shape[-1])}
            return variables | {"generator": jax.tree.map(lambda leaf: leaf.astype(features.dtype), generator)}

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            rest = dict(variables)
            kept = {"generator": rest.pop("generator")} if "generator" in rest else {}
            outputs, state = inner.encode(rest, inputs, context)
            return outputs, state | kept

        return inner._replace(init=init, encode=encode, base=(*inner.base, personal("generator/*")))

    return adapt
