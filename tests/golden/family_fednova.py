"""FedNova: the authors' optimizer on stored gradients."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import fednova
from fedjax_het.engine.round.program import make_round
from fedjax_het.server.weightings import stateless
from tests.golden.cases import Case, covers
from tests.golden.replay import client_data, linear_objective, vector_model


@covers("fednova", "tape_*")
def tape(case: Case):
    x, norms = _replay(case, _algorithm(case, "released"))
    yield case.compare("x", x)
    yield case.compare("x_ref", x)
    yield case.compare("a_norm", norms)
    _, norms = _replay(case, _algorithm(case, "impulse"))
    yield case.compare("a_norm_exact", norms[0])


def _algorithm(case: Case, a_norm: str) -> Algorithm:
    mu, counts = float(case["mu"]), jnp.asarray(case["n_samples"], float)
    return fednova(
        float(case["lr"]),
        float(case["momentum"]),
        mu,
        gmf=float(case["gmf"]),
        preset="released",
        **({} if a_norm == "released" else {"a_norm": a_norm}),
        weighting=stateless(lambda view: counts),
        weight_decay=float(case["weight_decay"]),
        batch_size=1,
        shuffle=False,
    )


def _replay(case: Case, algorithm: Algorithm) -> tuple[np.ndarray, np.ndarray]:
    """(the weights, all |a|_1) after each round in which client i meets its taus[i] gradients, one by one."""
    algorithm = replace(algorithm, objective=(linear_objective, *algorithm.objective[1:]))
    taus, state, weights, norms = case["taus"], None, [], []
    round = make_round(algorithm, vector_model(case["x0"]), len(taus))
    step = jax.jit(round.step_with_messages)
    for tapes in case["tapes"]:
        gradients = np.concatenate([tape[:tau] for tape, tau in zip(tapes, taus, strict=True)])
        data = client_data(gradients, np.zeros(len(gradients)), taus)
        state = round.init(make_key(0), data) if state is None else state
        state, _, said = step(state, data, make_key(0))
        weights.append(state.server.shared["params"]["w"])
        norms.append(said.uploads.reports["a_norm"])
    return np.stack(weights), np.stack(norms)
