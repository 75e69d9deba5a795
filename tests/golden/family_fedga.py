"""FedGA: weights that follow generalisation gaps, as released and as the paper has them."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithms import fedga
from fedjax_het.server.weightings import generalization_adjustment
from fedjax_het.server.weightings._generalization_adjustment import SCHEDULES, Adjustment
from tests.golden.cases import Case, covers
from tests.golden.released_rules import adjusted_weights
from tests.views import server_view

RELEASED_WEIGHTING = {name: value for name, value in fedga.presets["released"].items() if name != "metric"}


@covers("fedga", "*")
def adjustment(case: Case):
    """A report of mistakes instead of accuracy turns the sign of the gaps, as the released code does by name."""
    sign = {"loss": 1, "acc": -1}[case.meta["fair_metric"]]
    gaps, step, rounds = sign * (case["after"] - case["before"]), case.meta["step_size"], case.meta["comm"]
    ours = {
        name: weights(generalization_adjustment(step, rounds, **options), case[name][0], gaps)
        for name, options in {"weights_official": RELEASED_WEIGHTING, "weights_paper": {}}.items()
    }
    yield case.compare("weights_paper", ours["weights_paper"])
    name, steps = "weights_official", step * SCHEDULES["released"](np.arange(len(gaps)), rounds)
    if case.is_finite(name):
        yield case.compare(name, ours[name])
    else:
        expected = adjusted_weights(case[name][0], gaps, case["step_passed"])
        expected = np.where(np.isfinite(case[name]), case[name], expected)
        fault = "0/0 from gaps that are all zero, NaN in every later round"
        yield case.contain(name, ours[name], expected, fault, "the stored rows before, and unmoved by such a round")
    yield case.compare("step_passed", steps)


def weights(weighting, start: np.ndarray, gaps: np.ndarray) -> np.ndarray:
    """[rounds + 1, clients]; the gaps of round r arrive with the uploads of round r + 1."""

    @jax.jit
    def adjust(state, gap, round):
        return weighting.update(state, server_view(len(start), {"gap": gap}, round=round))

    state, path = Adjustment(jnp.asarray(start), jnp.ones(len(start), bool)), [start]
    for number, gap in enumerate(gaps):
        used, state = adjust(state, gap, number + 1)
        path.append(np.asarray(used))
    return np.stack(path)
