"""FedDecorr: the authors' term and rounds, and the printed term."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithms import feddecorr
from fedjax_het.client.objectives._representation import correlation
from tests.golden.cases import Case, covers
from tests.golden.networks import compare_federation, replay_federation, training_settings


@covers("feddecorr", "loss_*")
def losses(case: Case):
    case.meta.confirm(eps=1e-8)
    features = jnp.asarray(case["features"])
    padded, mask = jnp.pad(features, ((0, 2), (0, 0)), constant_values=7.0), np.append(np.ones(len(features)), [0, 0])
    for name, form in (("official", "released"), ("paper", "printed")):
        term = jax.jit(jax.value_and_grad(lambda x, form=form: correlation(x, jnp.asarray(mask), form)))
        value, gradient = term(padded)
        for part, own in ((f"{name}_loss", value), (f"{name}_grad", gradient[:-2])):
            # If the stored gradient is zero up to rounding, as for one feature, its scale is that of the value.
            scale = 1e-3 if part.endswith("grad") else 0.0
            if case.is_finite(part):
                yield case.compare(part, own, scale=scale)
            else:
                nothing = np.zeros(case[part].shape)
                yield case.contain(part, own, nothing, "the mean of no pair of features", "0: no pair")


@covers("feddecorr", "rounds_*")
def rounds(case: Case):
    algorithm = feddecorr(case.meta["coef"], **training_settings(case))
    yield from compare_federation(case, replay_federation(case, algorithm))
