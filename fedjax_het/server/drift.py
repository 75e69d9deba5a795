"""Drift of the clients' data, inferred by the server from its own model."""

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Problem, Summary
from fedjax_het.types import Named, ServerView, UpdateStack, Variables
from fedjax_het.validation import FractionBelowOne, validate_arguments


@validate_arguments
def learning_rate_factor(b1: FractionBelowOne = 0.5, b2: FractionBelowOne = 0.5, b3: FractionBelowOne = 0.5) -> Summary:
    """Adaptive-FedAvg's factor of the clients' learning rate, [], from the server's model at the beginning of a round.

        mu <- b1 mu + (1 - b1) w,   s <- b2 s + (1 - b2) mean((w - mu_old)^2),   g <- b3 g + (1 - b3) s / s_old
        factor = min(1, g / t) in round t = 1, 2, ...,   1 in round 0

    mu, s and g start at 0; all reads are corrected by 1 / (1 - b^t). The ratio is 1 while s_old is 0. It summarizes a
    survey without answers, so that the factor is known before clients train.

    Args:
        b1: Decay of the mean model.
        b2: Decay of the variance.
        b3: Decay of the ratio of variances.
    """

    def init(problem: Problem, shared: Variables, num_clients: int, cohort_size: int) -> Named:
        zero = jnp.zeros((), float)
        return {"mean": tree.zeros_like(shared["params"]), "variance": zero, "ratio": zero, "factor": zero + 1}

    def update(old: Named, answers: UpdateStack, view: ServerView) -> Named:
        params, time = view.received.shared["params"], view.received.round.astype(float)

        def correct(decay: float, time: jax.Array) -> jax.Array:
            return 1 / tree.positive_or_one(1 - jnp.power(decay, time))

        before = time - 1
        moved = tree.subtract(params, tree.scale(correct(b1, before), old["mean"]))
        variance = b2 * old["variance"] + (1 - b2) * tree.squared_norm(moved) / tree.num_entries(params)
        last = correct(b2, before) * old["variance"]
        is_known = last > 0
        now = jnp.where(is_known, correct(b2, time) * variance / tree.positive_or_one(last), 1)
        ratio = b3 * old["ratio"] + (1 - b3) * now
        new = {
            "mean": tree.add(tree.scale(b1, old["mean"]), tree.scale(1 - b1, params)),
            "variance": variance,
            "ratio": ratio,
            "factor": jnp.minimum(1, correct(b3, time) * ratio / jnp.maximum(time, 1)),
        }
        return tree.where(time > 0, new, old)

    return Summary(init, update, send=lambda value: value["factor"])
