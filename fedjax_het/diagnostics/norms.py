"""How large the clients' gradients and updates are."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.diagnostics.seen import example_losses, over_rows
from fedjax_het.types import Array, Look, Named, Rows


def of_round(problem, look: Look) -> Named:
    """{"updates": [cohort] |w_i - w|, "gradients": [cohort] |grad L_i(w)|}, over parameters.

    L_i: mean cross-entropy of the received model on the client's training examples, in evaluation mode.
    """
    received = look.view.received.shared

    def gradient_norm(row: Rows, personal) -> Array:
        model = tree.merge(received, personal)

        def summed(params, index: Array, mask: Array) -> Array:
            losses = example_losses(problem, {**model, "params": params}, look, index, mask)
            return jnp.sum(jnp.where(mask, losses, 0))

        def add(total, index: Array, mask: Array):
            return tree.add(total, jax.grad(summed)(model["params"], index, mask))

        total = over_rows(row, add, tree.zeros_like(model["params"]))
        return tree.norm(total) / jnp.maximum(row.count, 1)

    gradients = jax.lax.map(lambda one: gradient_norm(*one), (look.data.train, look.personal))
    return {"updates": jax.vmap(tree.norm)(look.view.uploads.update["params"]), "gradients": gradients}
