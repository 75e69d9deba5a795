"""FedJAX: its federated averaging with its jit backend, which compiles a client's step and loops over it in Python."""

import jax
import jax.numpy as jnp
import numpy as np

from ..workloads import LayeredWorkload, Weights
from . import Contender, ContenderSettings, UnusableError

try:
    import fedjax
except Exception as error:  # what is missing from newer releases of JAX shows as one of many kinds
    raise UnusableError(f"FedJAX does not run here, on JAX {jax.__version__}: {error}. See --python") from error


def prepare(work: LayeredWorkload, settings: ContenderSettings) -> Contender:
    def loss(weights: Weights, batch: dict[str, jax.Array], rng: jax.Array) -> jax.Array:
        x, remaining = batch["x"].astype(jnp.float32) / 255, list(weights)
        for layer in work.convolutions:
            kernel, bias, *remaining = remaining
            kernel = jnp.asarray(kernel)
            x = jax.lax.conv_general_dilated(x, kernel, (1, 1), layer.padding, dimension_numbers=_AXES)
            x = _pooled(x + bias)
        x = x.reshape(x.shape[0], -1)
        while remaining:
            kernel, bias, *remaining = remaining
            x = x @ kernel + bias
            x = jax.nn.relu(x) if remaining else x
        picked = jnp.take_along_axis(jax.nn.log_softmax(x), batch["y"][:, None], axis=1)
        return -picked.mean()

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(work.learning_rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=work.batch_size, num_epochs=1, skip_shuffle=True),
    )
    examples, rng = work.examples(), jax.random.PRNGKey(0)
    clients = [
        (b"%d" % client, fedjax.ClientDataset({"x": examples.inputs[rows], "y": examples.labels[rows]}), rng)
        for client, rows in enumerate(examples.clients)
    ]
    state = algorithm.init([jnp.asarray(value) for value in work.initial()])

    def round() -> None:
        nonlocal state
        with fedjax.for_each_client_backend("jit"):
            state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)

    return Contender(round, lambda: [np.asarray(value) for value in state.params])


_AXES = ("NHWC", "HWIO", "NHWC")


def _pooled(x: jax.Array) -> jax.Array:
    """The larger of each 2x2 window, then ReLU."""
    batch, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2].reshape(batch, height // 2, 2, width // 2, 2, channels)
    return jax.nn.relu(x.max(axis=(2, 4)))
