"""pFedMe: the authors' code, in which all clients train every round, and the paper's rule on the same gradients."""

import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithms import pfedme
from fedjax_het.server.weightings import stateless
from fedjax_het.types import State
from tests.golden.cases import Case, covers
from tests.golden.toy_leaves import ONE_BY_ONE, Toy, run_rounds


@covers("pfedme", "official_*")
def released(case: Case):
    settings, toy, cohorts = case.meta, Toy(case), case["selected"]
    rounds, num_clients, *_ = case["tapes"].shape
    counts = np.zeros((rounds, num_clients))  # 0 for clients that train without being averaged
    np.put_along_axis(counts, cohorts, case["n_samples"][cohorts].astype(float), axis=1)
    by_selection = stateless(lambda view: jnp.asarray(counts)[view.received.round][view.cohort])
    everyone = np.broadcast_to(np.arange(num_clients), (rounds, num_clients))
    options = {"weighting": by_selection, "weight_decay": settings["mu"]}
    states = _replay(case, toy, everyone, **options)
    yield case.compare("w", toy.shared(states))
    yield case.compare("theta", toy.own(states))
    local = toy.own(_replay(case, toy, everyone, evaluated="local", **options))
    yield case.compare("local", local)
    yield case.compare("evaluated", local)
    assert settings["evaluated_minus_local"] == 0 and settings["evaluated_minus_theta"] > 0.05
    for name, restart in (("paper", False), ("paper_restart", True)):
        states = _replay(case, toy, cohorts, weighting="uniform", restart=restart)
        yield case.compare(f"w_{name}", toy.shared(states))
        yield case.compare(f"theta_{name}", toy.own(states))


def _replay(case: Case, toy: Toy, cohorts: np.ndarray, **options) -> list[State]:
    settings = case.meta
    algorithm = pfedme(
        settings["learning_rate"],
        settings["lam"],
        settings["personal_learning_rate"],
        settings["inner_steps"],
        server_learning_rate=settings["beta"],
        **options,
        **ONE_BY_ONE,
    )
    round = toy.round(algorithm, len(case["h"]), cohorts.shape[1])
    return run_rounds(round, [toy.data(tapes, case["h"]) for tapes in case["tapes"]], cohorts)
