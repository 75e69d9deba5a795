"""A client's loss on its own training examples (FedMGC)."""

import jax
import jax.numpy as jnp

from fedjax_het.algorithm import Measure, Problem
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, ClientView, Variables

MEASURED = {"last_epoch_mean": "last_epoch_loss", "round_mean": "loss"}
EVALUATED = {"pre_eval": lambda view: view.start, "post_eval": lambda view: view.local}


def training_loss(moment: str = "last_epoch_mean", batch_size: int = 50) -> Measure:
    """The mean of the algorithm's objective over a client's training examples, [].

        last_epoch_mean:  over the last local epoch, while the weights moved; costs nothing
        round_mean:       over the whole round, likewise
        pre_eval:         of the model as the round began, in evaluation mode
        post_eval:        of the model after training, in evaluation mode

    Reads: metrics["last_epoch_loss"] or metrics["loss"]; evaluations view.start or view.local.
    batch_size: of evaluations.   Raises InputError for an unknown moment.
    Plain cross-entropy instead, whatever the objective: `validation_loss("local", examples="train")`.
    """
    if moment not in MEASURED | EVALUATED:
        raise InputError(f"training_loss: unknown moment '{moment}'. {nearest(moment, MEASURED | EVALUATED)}")

    def measure(problem: Problem, view: ClientView) -> Array:
        if moment in MEASURED:
            return view.metrics[MEASURED[moment]]
        return _mean_objective(problem, view, EVALUATED[moment](view), batch_size)

    return measure


def _mean_objective(problem: Problem, view: ClientView, variables: Variables, batch_size: int) -> Array:
    rows = view.data.train
    state = {name: leaves for name, leaves in variables.items() if name != "params"}

    def add_batch(number: Array, total: Array) -> Array:
        batch = problem.batch(view.data, rows.index, rows.count, number * batch_size, batch_size)
        key = jax.random.fold_in(jax.random.key(0), number)
        forward = problem.forward(variables["params"], state, batch, view, key, is_training=False)
        return total + jnp.sum(batch.mask) * sum(term(forward) for term in problem.objective)

    total = jax.lax.fori_loop(0, -(-rows.count // batch_size), add_batch, jnp.zeros((), float))
    return total / jnp.maximum(rows.count, 1)
