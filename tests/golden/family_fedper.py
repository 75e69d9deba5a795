"""FedPer and LG-FedAvg: LG-FedAvg's authors' code, and both in the repositories of FedRep and FedBABU."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import fedper, lgfedavg
from fedjax_het.client.local_updates import sgd
from fedjax_het.client.personalization import fine_tuned
from fedjax_het.sharing import HEAD
from fedjax_het.types import State
from tests.golden.cases import Case, covers
from tests.golden.toy_leaves import (
    ONE_BY_ONE,
    Toy,
    completed,
    own_models,
    sgd_with_decay_of_weights,
    stored_weighting,
)

METHODS = {"body": fedper, "head": lgfedavg}  # by the shared part
UNASKED = "a client that was never asked has the mean personal part of the last cohort, by shared storage"
DRIFT = "a part that is not trained still moves by momentum and decay (PyTorch before 2)"


@covers("lgfedavg", "official_*")
def local_representations(case: Case):
    """With the list of layers in another order, the authors' code is FedPer."""
    settings, toy = case.meta, Toy(case)
    settings.confirm(weight_decay=0.0, weights="uniform")
    algorithm = METHODS[settings["shared"]](
        weighting="uniform", learning_rate=settings["learning_rate"], momentum=settings["momentum"], **ONE_BY_ONE
    )
    states = toy.replay(algorithm, case)
    yield case.compare("v", toy.vector(completed(states)))
    yield case.compare("w_shared", toy.shared(states))


@covers("fedper", "fedrep_repo_*")
@covers("lgfedavg", "fedrep_repo_*")
def fedrep_repository(case: Case):
    settings, toy = case.meta, Toy(case)
    settings.confirm(weight_decay_on="weights (parts 0 and 2), not biases", zero_grad="none")
    settings.confirm(body_epochs=None, head_epochs=None)
    states = toy.replay(_fedrep_repository(case), case)
    personal = completed(states)
    yield from compare_with_unasked(case, toy, states, personal)
    yield from closing_pass(case, toy, _fedrep_repository(case), states[-1])


def _fedrep_repository(case: Case) -> Algorithm:
    optimizer = released_optimizer(case)
    return METHODS[case.meta["shared"]](weighting=stored_weighting(case), optimizer=optimizer, **ONE_BY_ONE)


def released_optimizer(case: Case):
    return sgd_with_decay_of_weights(*(case.meta[name] for name in ("learning_rate", "momentum", "weight_decay")))


def compare_with_unasked(case: Case, toy: Toy, states: list[State], personal):
    """The released personal models; clients that were never sampled follow the others."""
    v, is_shared = toy.vector(personal), toy.is_body if case.meta["shared"] == "body" else ~toy.is_body
    shared = toy.shared(states)
    assert not case.meta["paper_differs_shared"] > 1e-9
    yield case.compare("paper_v", v)
    yield case.compare("w", shared, part=lambda w: w[:, is_shared])  # the others are an unused mean
    yield case.compare("paper_w", shared, part=lambda w: w[:, is_shared])
    if "n_samples" in case and case.meta["weights"] == "uniform":
        case.excuse("n_samples", "every client counts the same")
    if case.meta["paper_differs_v"] < 1e-9:
        yield case.compare("v", v)
    else:
        faults = [UNASKED] * (len(case["h"]) > case["selected"].shape[1]) + [DRIFT] * (
            case.meta["zero_grad"] == "zeros"
        )
        yield case.contain("v", v, case["paper_v"], "; ".join(faults), "what the paper's rule gives, paper_v")


def closing_pass(case: Case, toy: Toy, algorithm: Algorithm, state: State):
    """After the last round every client trains its own part alone, from the personal models as released."""
    tapes, v = case["final_tapes"], toy.leaves(case["v"][-1])
    own_part = HEAD if case.meta["shared"] == "body" else f"!{HEAD}"
    last_training = sgd(optimizer=released_optimizer(case), only=own_part, **ONE_BY_ONE)
    algorithm = replace(algorithm, personalize=fine_tuned(last_training))
    own = {layer: v[layer] for layer in state.clients.personal["params"]}
    state = state._replace(clients=state.clients._replace(personal={"params": own}))
    round = toy.round(algorithm, len(case["h"]), case["selected"].shape[1])
    yield case.compare("final_v", toy.vector(own_models(round, state, toy.data(tapes, case["h"]))["params"]))


@covers("fedper", "babu_repo_*")
@covers("lgfedavg", "babu_repo_*")
def fedbabu_repository(case: Case):
    settings, toy = case.meta, Toy(case)
    settings.confirm(trained="full", weights="uniform", fine_tune_part=None, fine_tune_learning_rate=None)
    factors = jnp.asarray(case["lr_round"] / settings["learning_rate"])
    algorithm = METHODS[settings["shared"]](
        weighting="uniform",
        learning_rate=settings["learning_rate"],
        learning_rate_schedule=lambda round: factors[round],
        momentum=settings["momentum"],
        weight_decay=settings["weight_decay"],
        **ONE_BY_ONE,
    )
    v = toy.vector(completed(toy.replay(algorithm, case)))
    yield case.compare("v_kept", v)
    fault = "what was trained and is not averaged is thrown away"
    yield case.contain("v", v, case["v_kept"], fault, "what is kept, v_kept")
    is_kept = ~toy.is_body if settings["shared"] == "body" else toy.is_body
    assert np.array_equal(case["v"][..., is_kept], np.broadcast_to(toy.start, v.shape)[..., is_kept])
