"""The mean of updates per unit of local work (FedNova)."""

from collections.abc import Callable

import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Aggregator, Problem, Weighting
from fedjax_het.errors import InputError, nearest
from fedjax_het.server.weightings import named, normalise, total_weight
from fedjax_het.types import Aggregate, Array, PyTree, ServerView, Upload, Variables
from fedjax_het.validation import Positive, validate_arguments

WORKS = {
    "coefficients": lambda weights, norms, steps: jnp.sum(weights * norms),
    "steps": lambda weights, norms, steps: jnp.sum(weights * steps),
}


@validate_arguments
def normalized_mean(weighting: str | Weighting = "samples", tau_eff: str | Positive = "coefficients") -> Aggregator:
    """Divide every update by the work behind it, average, and go as far as everyone's work together.

        u = tau_eff sum_i p_i u_i / |a_i|_1

    So that clients with more steps do not pull the optimum towards themselves. Parameters only; other collections
    take the weighted mean. A client that took no step (|a_i|_1 = 0) is left out.
    Shapes: leaves [cohort, ...] -> [...].   Reads: reports["a_norm"] (see client.measures.coefficient_norm).
    tau_eff: "coefficients", sum_i p_i |a_i|_1 (one client: its own update); "steps", sum_i p_i tau_i (the authors'
    code where there is a proximal term); or a number.   Raises InputError for anything else.
    Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, NeurIPS 2020.
    """
    weighting = named(weighting)
    if isinstance(tau_eff, str) and tau_eff not in WORKS:
        raise InputError(f"tau_eff: unknown option '{tau_eff}', nor a number. {nearest(tau_eff, WORKS)}")

    def update(problem: Problem, state: PyTree, view: ServerView) -> tuple[Aggregate, PyTree]:
        norms = _norms(view.uploads)
        has_worked = view.is_present & (norms > 0)
        weights, state = weighting.update(state, view)
        weights = normalise(weights, has_worked)
        effective = WORKS[tau_eff](weights, norms, view.uploads.num_steps) if isinstance(tau_eff, str) else tau_eff
        if view.summed is None:
            sums = _by_work(view.uploads.update, weights, norms, tree.weighted_sum)
        else:
            sums = tree.scale(1 / total_weight(weighting, view, has_worked), view.summed)
        return Aggregate({**sums, "params": tree.scale(effective, sums["params"])}, {}), state

    def summand(upload: Upload) -> Variables:
        norm = _norms(upload)
        weight = jnp.where(norm > 0, weighting.weigh(upload), 0)
        return _by_work(upload.update, weight, norm, lambda update, factor: tree.scale(factor, update))

    return Aggregator(weighting.init, update, summand if weighting.weigh else None)


def _by_work(update: Variables, weights: Array, norms: Array, weigh: Callable[[PyTree, Array], PyTree]) -> Variables:
    """Parameters weighed per unit of work, other collections as they are; of one client, or of a stack."""
    rest = {name: leaves for name, leaves in update.items() if name != "params"}
    a_unit = weights / jnp.where(norms > 0, norms, 1)
    return {"params": weigh(update["params"], a_unit), **weigh(rest, weights)}


def _norms(uploads: Upload) -> Array:
    if "a_norm" not in uploads.reports:
        raise InputError(
            "aggregator 'normalized_mean' reads reports['a_norm'], which nobody sends. "
            'Add reports={"a_norm": coefficient_norm(learning_rate, momentum)} to the Algorithm.'
        )
    return uploads.reports["a_norm"]
