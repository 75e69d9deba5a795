"""A fixed simplex equiangular tight frame as classifier (FedETF)."""

import functools
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.models._adaptations import split_off, vector_shapes
from fedjax_het.models._dense import apply_dense, init_dense
from fedjax_het.models._frozen import spare_leaves
from fedjax_het.types import Array, Context, Key, Model, Named, Params, Variables
from fedjax_het.validation import Count, Positive, Seed, validate_arguments


@validate_arguments
def framed(width: Count | None = None, scale: Positive = 10.0, seed: Seed = 0) -> Callable[[Model], Model]:
    """Replace the classifier by a projection and a fixed frame that is equal for all clients.

        g = P h + q,   z = s V^T g / |g|,   V = sqrt(C / (C - 1)) Q (I - 11^T / C)

    h [batch, feature] are the model's features, g [batch, D] the new features. V [D, C] has unit columns, as far apart
    as C vectors can be. Q has orthonormal columns, computed in float64 from a uniform random matrix, and is not part of
    the variables. If g is 0, so are the logits and their gradient.

    Adds params/projection/{kernel,bias}, and in place of the head params/classifier/scale (s) and
    params/classifier/classes [0, C], an empty leaf that encodes C.

    Args:
        width: D, at least C (default None, the maximum of the numbers of features and classes).
        scale: Initial value of s, which is trained, decayed and averaged (default 10).
        seed: The seed of the frame.

    Raises:
        InputError: When initialized, features are maps, there are fewer than two classes, or the width is below C.

    References:
        Li et al., No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and Fixed
        Classifier, ICCV 2023. arXiv:2303.10058; code ZexiLee/ICCV-2023-FedETF.
    """

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            variables = model.init(key, inputs)
            features, logits = vector_shapes("frame", model, variables, inputs)
            (_, inside), num_classes, dtype = features.shape, logits.shape[-1], features.dtype
            outside = width or max(inside, num_classes)
            if not 2 <= num_classes <= outside:
                raise InputError(
                    f"width: {outside} dimensions hold frames of 2 to {outside} vectors, not {num_classes}."
                )
            layer = init_dense(jax.random.fold_in(key, 1), inside, outside, dtype)
            head = {"scale": jnp.asarray(scale, dtype), "classes": jnp.zeros((0, num_classes), dtype)}
            params = {**variables["params"], "projection": layer, "classifier": head}
            return variables | {"params": params}

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            own, rest = split_off(variables, "projection", "classifier")
            (features, extras), state = model.encode(rest, inputs, context)
            return (apply_dense(own["projection"], features), extras), state

        def classify(params: Params, features: Array) -> Array:
            head = params["classifier"]
            frame = jnp.asarray(_seeded_frame(features.shape[-1], head["classes"].shape[-1], seed), features.dtype)
            return framed_logits(features, frame, head["scale"])

        def layers(inputs: Array) -> Mapping[str, type]:
            return {**model.layers(inputs), "projection": nn.Dense}

        spared = spare_leaves(model, "params/projection/*")
        return spared._replace(init=init, encode=encode, classify=classify, layers=layers)

    return adapt


def framed_logits(features: Array, frame: Array, scale: Array | float) -> Array:
    """s V^T g / |g| for features g [batch, D] and a frame V [D, class]; 0 with gradient 0 where g is 0."""
    squared = jnp.sum(jnp.square(features), axis=-1, keepdims=True)
    is_long = squared > 1e-24  # the released code divides shorter vectors by 1e-12
    direction = jnp.where(is_long, features / jnp.sqrt(jnp.where(is_long, squared, 1)), 0)
    return scale * jnp.matmul(direction, frame, precision=jax.lax.Precision.HIGHEST)


def simplex_frame(uniform: np.ndarray) -> np.ndarray:
    """V [D, class] from a matrix [D, class] of full rank whose columns are made orthonormal."""
    num_classes = uniform.shape[1]
    orthonormal, _ = np.linalg.qr(uniform)
    centred = np.eye(num_classes) - 1 / num_classes
    return math.sqrt(num_classes / (num_classes - 1)) * orthonormal @ centred


@functools.lru_cache(maxsize=8)
def _seeded_frame(width: int, num_classes: int, seed: int) -> np.ndarray:
    return simplex_frame(np.random.default_rng(seed).uniform(size=(width, num_classes)))
