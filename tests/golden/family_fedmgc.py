"""FedMGC: focal loss, dominant gradients and their correction, measures of conflict."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.client.objectives import focal
from fedjax_het.client.objectives._supervised import focal_losses
from fedjax_het.diagnostics import conflict
from fedjax_het.diagnostics._updates import num_conflicts
from fedjax_het.server.aggregators import dominant_correction
from fedjax_het.server.aggregators._conflict import dominant_edit, rank_by_dominance
from tests.golden.cases import Case, covers
from tests.golden.replay import aggregate
from tests.views import forward_pass

AGGREGATES = {
    "agg": {},
    "agg_weighted": {"weighting": "samples"},
    "agg_simultaneous": {"order": "simultaneous"},
    "agg_targetcurrent": {"target": "current"},
}
P_MODES = {"sum_excl": "mean_excl"}  # the text's sum, which ranks as the mean does: no option here


@covers("fedmgc", "focal_*")
def focal_loss(case: Case):
    labels, gamma, beta = case["labels"], float(case["gamma"]), float(case["beta"])

    def total(logits):
        return focal(gamma, beta)(forward_pass(logits, labels))

    logits = jnp.asarray(case["logits"])
    loss, gradient = jax.jit(jax.value_and_grad(total))(logits)
    # The reference takes log p_t from p_t: where that is nearly 1, its last digit is 2e-16, whatever 1 - p_t is.
    digit = np.finfo(float).eps / 1e-9
    yield case.compare("loss", loss, scale=digit)
    yield case.compare("grad", gradient, scale=digit)
    per_sample = jax.jit(lambda logits, gamma, beta: focal_losses(logits, labels, gamma, beta))
    yield case.compare("per_sample", per_sample(logits, gamma, beta), scale=digit)
    yield case.compare("p_true", np.exp(-per_sample(logits, 0.0, 1.0)))


@covers("fedmgc", "paper_*")
def paper(case: Case):
    stack, losses, counts = (jnp.asarray(case[name]) for name in ("G", "losses", "n_samples"))
    gram, everyone = stack @ stack.T, jnp.ones(len(stack), bool)
    scale = float(jnp.linalg.norm(stack, axis=1).max())
    yield case.compare("P", conflict(gram).projections)
    yield case.compare("conflicts_before", num_conflicts(gram))
    for mode in (name.removeprefix("p_") for name in case.matching("p_*")):
        measured = jax.jit(partial(conflict, mode=mode))(gram, losses)
        yield case.compare(f"p_{mode}", measured.agreement, scale=scale)
        yield case.compare(f"z_{mode}", measured.dominance, scale=scale)
        settings = case.matching(f"dominant_{mode}_lam*")

        @jax.jit
        def dominate(fraction, mode=mode):
            edit = dominant_edit(fraction, p_mode=P_MODES.get(mode, mode))
            coefficients = edit(gram, everyone, losses)
            ours = {"corrected": coefficients @ stack, "conflicts_after": num_conflicts(gram, coefficients)}
            ours["applied"] = coefficients - jnp.eye(len(stack)) > 0
            return rank_by_dominance(gram, everyone, losses, fraction, mode), ours

        for name in settings:
            (order, num_dominant), ours = dominate(float(name.rpartition("_lam")[2]))
            setting, chosen = name.removeprefix("dominant_"), np.asarray(order)[: int(num_dominant)]
            yield case.compare(name, chosen)
            ours["applied"] = np.asarray(ours["applied"])[:, chosen]
            for kind, values in ours.items():
                if f"{kind}_{setting}" in case:
                    yield case.compare(f"{kind}_{setting}", values, scale=scale if kind == "corrected" else 0)
        for prefix, options in AGGREGATES.items():
            means = jax.jit(partial(corrected_mean, stack, counts, losses, p_mode=P_MODES.get(mode, mode), **options))
            for name in case.matching(f"{prefix}_{mode}_lam*"):
                yield case.compare(name, means(float(name.rpartition("_lam")[2])), scale=scale)


def corrected_mean(stack, counts, losses, fraction, **options):
    aggregator = dominant_correction(fraction, **options)
    return aggregate(aggregator, {"params": {"w": stack}}, counts, {"loss": losses})[0]["params"]["w"]


@covers("fedmgc", "hand_*")
def by_hand(case: Case):
    stack, losses = case["G"], jnp.asarray(case["losses"])
    gram, everyone = jnp.asarray(stack @ stack.T), jnp.ones(len(stack), bool)
    measured = jax.jit(conflict)(gram, losses)
    yield case.compare("P", measured.projections)
    yield case.compare("p", measured.agreement)
    yield case.compare("z", measured.dominance)
    order, num_dominant = jax.jit(rank_by_dominance)(gram, everyone, losses)
    yield case.compare("dominant", order[: int(num_dominant)])
    yield case.compare("corrected", jax.jit(dominant_edit())(gram, everyone, losses) @ stack)
    yield case.compare("agg", corrected_mean(stack, None, losses, 0.5))


@covers("fedmgc", "pcgrad_*")
def pcgrad(case: Case):
    """If all clients are dominant, the correction is PCGrad in the order of z."""
    stack, losses = case["G"], case["losses"]
    gram = jnp.asarray(stack @ stack.T)
    order, _ = jax.jit(rank_by_dominance)(gram, jnp.ones(len(stack), bool), jnp.asarray(losses), 1.0)
    yield case.compare("order", order)
    ours = corrected_mean(stack, None, losses, 1.0)
    yield case.compare("agg_uniform", ours, scale=float(np.linalg.norm(stack, axis=1).max()))
