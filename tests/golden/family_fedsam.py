"""FedSAM and FedASAM: the authors' code, and a third party's."""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het.algorithm import LocalUpdate
from fedjax_het.algorithms import fedasam, fedsam
from fedjax_het.client.schedules import cyclic
from fedjax_het.types import Trained
from tests.golden.ascents import Ascents, replay_ascents
from tests.golden.cases import Case, covers
from tests.golden.replay import replay_rounds, vector_model


@covers("fedsam", "*")
def training(case: Case):
    """The authors' server is an optimizer on the mean by examples."""
    ours = replay_ascents(case, partial(_build, fedsam, case))
    yield from _compare(case, ours)


@covers("fedsam", "qu_*")
def third_party(case: Case):
    yield from _third_party(case, partial(_build, fedsam, case))


@covers("fedsam", "swa_*")
def model_average(case: Case):
    """A client that is trained to the stored models. Until it has a mean, the release tests the one before `start`."""
    meta, models = case.meta, case["models"]
    num_rounds = len(models)
    meta.confirm(epsilon=0.0)

    def train(problem, view, key):
        weights = view.data.examples.inputs[view.data.train.index[0]]
        return Trained({"params": {"w": weights}}, jnp.ones(()), (), {"loss": jnp.zeros(())})

    algorithm = fedsam(swa_start=meta["start"], swa_cycle=meta["cycle"])
    algorithm = replace(algorithm, local_update=LocalUpdate(train, lambda count: count, 1))
    shape = (num_rounds, 1, 1)
    states, _ = replay_rounds(
        algorithm, vector_model(case["x0"]), models[:, None, None], np.zeros(shape), np.zeros(shape[:2], int), 1
    )
    evaluated = np.stack([algorithm.evaluated(state.server)["params"]["w"] for state in states])
    counts = [int(state.server.aggregator.count) for state in states]
    yield case.compare("num_collected", counts[1:], part=lambda collected: collected[:-1])
    schedule = cyclic(meta["start"], meta["cycle"], meta["swa_lr"] / meta["lr"])
    yield case.compare("learning_rate", [meta["lr"] * schedule(jnp.asarray(number)) for number in range(num_rounds)])
    is_waiting = (np.arange(num_rounds) >= meta["start"]) & (case["num_collected"] == 0)
    expected = np.where(is_waiting[:, None], models, case["evaluated"])
    fault = "from round start to the first collection the model from before it"
    yield case.contain("evaluated", evaluated, expected, fault, "the server's model in those rounds")


@covers("fedasam", "*")
def adaptive_training(case: Case):
    num_weights = int(case["n_weight"])
    build = partial(_build, fedasam, case, eta=case.meta["eta"])
    yield from _compare(case, replay_ascents(case, build, num_weights))
    if "x_all_adaptive" in case:
        yield case.compare("x_all_adaptive", replay_ascents(case, partial(build, adaptive="all"), num_weights).x)


@covers("fedasam", "flsim_*")
def third_party_adaptive(case: Case):
    case.excuse("n_weight", "every parameter is adaptive")
    yield from _third_party(case, partial(_build, fedasam, case, eta=case.meta["eta"], adaptive="all"))


def _build(algorithm, case: Case, epsilon: float | None = None, **settings):
    weighting = "uniform" if case.meta["epsilon"] == 1e-7 else "samples"  # FL-Simulator
    built = algorithm(
        case.meta["rho"], epsilon=case.meta["epsilon"] if epsilon is None else epsilon, weighting=weighting, **settings
    )
    server_rate = case.meta.get("server_lr", case.meta.get("server_learning_rate", 1.0))
    return replace(built, server_optimizer=optax.sgd(server_rate, case.meta.get("server_momentum", 0.0)))


def _third_party(case: Case, build):
    yield from _compare(case, replay_ascents(case, build))
    exact = replay_ascents(case, partial(build, epsilon=0.0))
    yield case.compare("x_paper", exact.x)
    if "w_adv_paper" in case:
        yield case.compare("w_adv_paper", exact.nearby)


def _compare(case: Case, ours: Ascents):
    case.meta.confirm(clip=10 if case.meta["epsilon"] == 1e-7 else None)  # which never acts here
    yield case.compare("x", ours.x)
    yield case.compare("w_adv", ours.nearby)
    if "local" in case:
        yield case.compare("local", ours.local)
