"""Which classes a client has learnt (FedMGC, Fig. 8)."""

import jax
import jax.numpy as jnp
import optax

from fedjax_het.diagnostics.seen import client_models, logits, over_rows
from fedjax_het.types import Array, Batch, Named, RoundSnapshot, Rows


def of_round(problem, look: RoundSnapshot) -> Named:
    """{"losses": [cohort, classes], "counts": [cohort, classes]}: mean cross-entropy of each client's trained model on
    its training examples of a class, NaN where it has none; how many it has. Of masks, pixels are counted.
    """

    def one(model, row: Rows) -> Array:
        a_pass = lambda: logits(problem, model, look, problem.batch(look.data, row.index, row.count, 0, 1))  # noqa: E731
        num_classes = jax.eval_shape(a_pass).shape[-1]

        def add(total: Array, batch: Batch) -> Array:
            found, labels, mask = logits(problem, model, look, batch), batch.labels, batch.mask
            losses = optax.softmax_cross_entropy_with_integer_labels(found, labels)
            counted = jnp.broadcast_to(mask.reshape(mask.shape + (1,) * (labels.ndim - 1)), labels.shape).astype(float)
            return total.at[:, labels].add(jnp.stack([losses * counted, counted]))

        return over_rows(problem, look, row, add, jnp.zeros((2, num_classes), float))

    sums, counts = jnp.moveaxis(jax.lax.map(lambda each: one(*each), (client_models(look), look.data.train)), 1, 0)
    return {"losses": jnp.where(counts > 0, sums / jnp.maximum(counts, 1), jnp.nan), "counts": counts}
