"""Generators of features for given classes: a network of noise and class, which the server trains (FedGen).

    G(e, y) = W_2 relu(norm(W_1 [e, onehot(y)] + b_1)) + b_2,   e uniform in 0..1

The leaves of a generator are {"hidden", "norm", "output"}; `norm` normalizes by the batch in training, and by the
running mean and variance elsewhere.
"""

import jax
import jax.numpy as jnp

from fedjax_het.types import Array, Key, PyTree

_RUNNING = ("mean", "variance")
_MOMENTUM, _EPSILON = 0.1, 1e-5  # of the batch norm, PyTorch's


def init_generator(key: Key, num_classes: int, num_features: int, hidden: int, noise: int) -> PyTree:
    """Draw the leaves of a generator.

    Args:
        key: The key of the weights.
        num_classes: The number of classes.
        num_features: The number of generated features.
        hidden: The number of hidden units.
        noise: The number of random inputs.
    """
    first, second = jax.random.split(key)
    norm = {"scale": jnp.ones(hidden), "bias": jnp.zeros(hidden)}
    return {
        "hidden": _init_dense(first, noise + num_classes, hidden),
        "norm": {**norm, "mean": jnp.zeros(hidden), "variance": jnp.ones(hidden)},
        "output": _init_dense(second, hidden, num_features),
    }


def _init_dense(key: Key, num_inputs: int, num_outputs: int) -> PyTree:
    kernel = jax.random.normal(key, (num_inputs, num_outputs)) / jnp.sqrt(num_inputs)
    return {"kernel": kernel, "bias": jnp.zeros(num_outputs)}


def generate(generator: PyTree, noise: Array, labels: Array, *, is_training: bool = False) -> tuple[Array, PyTree]:
    """Generate features of the given classes.

    Args:
        generator: The leaves.
        noise: [batch, noise], uniform in 0..1.
        labels: [batch].
        is_training: Whether `norm` uses the statistics of the batch, and updates the running ones.

    Returns:
        (features [batch, feature], {"mean", "variance"}: the new running statistics.)
    """
    norm, width = generator["norm"], generator["hidden"]["kernel"].shape[0]
    classes = jax.nn.one_hot(labels, width - noise.shape[1], dtype=noise.dtype)
    values = jnp.matmul(jnp.concatenate([noise, classes], axis=1), generator["hidden"]["kernel"])
    bias, running = generator["hidden"]["bias"], (norm["mean"], norm["variance"])
    mean, variance = running[0] - bias, running[1]
    if is_training:
        # The bias cancels; if it were added, rounding errors would be its gradient, and Adam would take steps of them.
        mean, variance = jnp.mean(values, axis=0), jnp.var(values, axis=0)
        unbiased = variance * len(values) / max(len(values) - 1, 1)
        pairs = zip(running, (mean + bias, unbiased), strict=True)
        running = tuple((1 - _MOMENTUM) * old + _MOMENTUM * jax.lax.stop_gradient(new) for old, new in pairs)
    values = (values - mean) / jnp.sqrt(variance + _EPSILON) * norm["scale"] + norm["bias"]
    return _apply_dense(generator["output"], jax.nn.relu(values)), dict(zip(_RUNNING, running, strict=True))


def _apply_dense(layer: PyTree, inputs: Array) -> Array:
    return jnp.matmul(inputs, layer["kernel"]) + layer["bias"]


def split_running(generator: PyTree) -> tuple[PyTree, PyTree]:
    """(the trained leaves, {"mean", "variance"}: the running statistics) of a generator."""
    norm = dict(generator["norm"])
    running = {name: norm.pop(name) for name in _RUNNING}
    return {**generator, "norm": norm}, running


def join_running(trained: PyTree, running: PyTree) -> PyTree:
    """The inverse of `split_running`."""
    return {**trained, "norm": {**trained["norm"], **running}}
