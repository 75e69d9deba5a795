"""FedLC: third parties' losses, the printed form, and rounds with the masked form."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithms import fedlc
from fedjax_het.client.objectives._label_skew import calibrated_losses
from tests.golden.cases import Case, covers
from tests.golden.networks import compare_federation, replay_federation, training_settings

FORMS = {
    "masked": ("inclusive", None),
    "fluke": ("inclusive", None),
    "floor": ("inclusive", 1e-8),
    "flbench": ("inclusive", 1e-8),
    "paper": ("printed", None),
    "paper_floor": ("printed", 1e-8),
}


@covers("fedlc", "loss_*")
def losses(case: Case):
    tau, counts = case.meta["tau"], jnp.asarray(case["counts"], float)
    logits, labels = jnp.asarray(case["logits"]), jnp.asarray(case["labels"])

    everyone = jnp.asarray(case["all_counts"].sum(axis=0), float)

    @jax.jit
    def all_losses(logits):
        def loss(counts, form, floor):
            mean = lambda logits: jnp.mean(calibrated_losses(logits, labels, counts, tau, form, floor))  # noqa: E731
            return jax.value_and_grad(mean)(logits)

        ours = {name: loss(counts, form, floor) for name, (form, floor) in FORMS.items()}
        # Our formula with counts over all clients, which is not FedLC; then counts floored at 1e-5.
        ours |= {name: loss(everyone, "inclusive", 1e-8) for name in ("global", "pfllib")}
        return ours, loss(counts, "inclusive", 1e-5)

    ours, (value, gradient) = all_losses(logits)
    for name, values in ours.items():
        yield from _compare(case, name, values)
    # Exponentials cut at 100: a logit above ln 100 has no gradient there.
    shifted = logits - _margins(jnp.maximum(counts, 1e-5), tau)
    if bool(jnp.all(shifted < np.log(100))):
        yield case.compare("marsfl_loss", value, 1e-7)
        yield case.compare("marsfl_grad", gradient, 1e-7)
    else:
        yield case.refute("marsfl_loss", value)
        yield case.refute("marsfl_grad", gradient)
    is_finite = np.isfinite(case["margin"])
    if tau > 0 and not np.array_equal(is_finite, case["counts"] > 0):
        raise ValueError("other margins are infinite than those of missing classes")
    ours = _margins(jnp.where(counts > 0, counts, 1.0), tau)
    yield case.compare("margin", ours[is_finite], part=lambda stored: stored[is_finite])
    yield case.compare("pfllib_margin", _margins(everyone, tau))


def _margins(counts, tau: float):
    return tau * counts**-0.25


def _compare(case: Case, name: str, ours):
    value, gradient = ours
    for part, own in ((f"{name}_loss", value), (f"{name}_grad", gradient)):
        if case.is_finite(part) and case.is_finite(f"{name}_loss"):
            yield case.compare(part, own)
        elif case.meta["tau"] == 0:
            expected = case["floor_loss" if part.endswith("loss") else "floor_grad"]
            yield case.contain(part, own, expected, "0 times infinity", "the plain cross-entropy")
        else:
            yield case.contain(part, own, np.zeros(case[part].shape), "the sum over no class", "0: there is no term")


@covers("fedlc", "rounds_*")
def rounds(case: Case):
    case.meta.confirm(missing="masked")
    algorithm = fedlc(case.meta["tau"], **training_settings(case))
    yield from compare_federation(case, replay_federation(case, algorithm))
