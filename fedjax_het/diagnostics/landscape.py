"""The loss around the server's model, along two directions (HarmoFL, Fig. 1)."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.diagnostics.seen import BATCH, global_models, mean_loss
from fedjax_het.types import Array, Key, Named, Params, RoundSnapshot

RADIUS, POINTS = 1.0, 11


def filter_normalised(key: Key, params: Params) -> Params:
    """A Gaussian direction whose every filter is as long as the model's own, zero for biases and norms.

    d_f <- d_f |w_f| / |d_f|, f the last axis of a kernel: an output channel.
    Li et al., Visualizing the Loss Landscape of Neural Nets, 2018.
    """
    leaves, structure = jax.tree.flatten(params)

    def direction(key: Key, weights: Array) -> Array:
        if weights.ndim < 2:
            return jnp.zeros_like(weights)
        drawn, axes = jax.random.normal(key, weights.shape, weights.dtype), tuple(range(weights.ndim - 1))
        lengths = [jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True)) for x in (weights, drawn)]
        return drawn * lengths[0] / jnp.where(lengths[1] > 0, lengths[1], 1)

    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [direction(*each) for each in zip(keys, leaves, strict=True)])


def of_round(problem, look: RoundSnapshot) -> Named:
    """{"clients": [cohort, 11, 11], "federation": [11, 11], "steps": [11]}: mean cross-entropy at w + a d_1 + b d_2.

    w: the server's model after the round, with each client's own leaves; a, b from -1 to 1, directions by
    `filter_normalised`. Each client by its first 256 training examples, the federation weighted by examples.
    """
    steps, models = jnp.linspace(-RADIUS, RADIUS, POINTS), global_models(look)
    first, second = (filter_normalised(key, look.shared["params"]) for key in jax.random.split(look.key))
    rows = look.data.train._replace(count=jnp.minimum(look.data.train.count, BATCH))

    def at(point: Array) -> Array:
        shift = tree.add(tree.scale(point[0], first), tree.scale(point[1], second))
        moved = tree.add(look.shared["params"], shift)

        def of_client(one) -> Array:
            model, row = one
            return mean_loss(problem, tree.merge(model, {"params": moved}), look, row)

        return jax.lax.map(of_client, (models, rows))

    grid = jnp.stack(jnp.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2)
    losses = jax.lax.map(at, grid).T.reshape(-1, POINTS, POINTS)
    shares = jnp.where(look.view.is_present, look.view.uploads.num_examples, 0)
    federation = jnp.tensordot(shares / jnp.maximum(jnp.sum(shares), 1), losses, axes=1)
    return {"clients": losses, "federation": federation, "steps": steps}
