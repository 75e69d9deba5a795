"""How large the clients' gradients and updates are."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.diagnostics.seen import over_rows, total_loss
from fedjax_het.types import Array, Batch, Named, Params, RoundSnapshot, Rows, Variables


def of_round(problem, look: RoundSnapshot) -> Named:
    """{"updates": [cohort] |w_i - w|, "gradients": [cohort] |grad L_i(w)|}, over parameters.

    L_i: mean cross-entropy of the received model on the client's training examples, in evaluation mode.
    """
    received = look.view.received.shared

    def gradient_norm(row: Rows, personal: Variables) -> Array:
        model = tree.merge(received, personal)

        def of_batch(params: Params, batch: Batch) -> Array:
            return total_loss(problem, {**model, "params": params}, look, batch)

        def add(total: Params, batch: Batch) -> Params:
            return tree.add(total, jax.grad(of_batch)(model["params"], batch))

        total = over_rows(problem, look, row, add, tree.zeros_like(model["params"]))
        return tree.norm(total) / jnp.maximum(row.count, 1)

    gradients = jax.lax.map(lambda one: gradient_norm(*one), (look.data.train, look.personal))
    return {"updates": jax.vmap(tree.norm)(look.view.updates.tensors()["params"]), "gradients": gradients}
