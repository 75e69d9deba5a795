"""Ditto: the authors' code, the paper, and one client of three other repositories."""

import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import ditto
from fedjax_het.server.weightings import stateless
from fedjax_het.types import State
from tests.golden.cases import Case, covers
from tests.golden.toy_leaves import ONE_BY_ONE, Toy, by_samples, run_rounds, sgd_with_decay_of_weights

OUTSIDE = "the pull to w is added outside of the momentum"


def _algorithm(case: Case, weighting, **options):
    rates = {name: case.meta[name] for name in ("lam", "learning_rate")} | options
    return ditto(weighting=weighting, **rates, **ONE_BY_ONE)


@covers("ditto", "official_*")
def released(case: Case):
    """One stored gradient per step serves both models, which the order of the examples gives."""
    settings, toy = case.meta, Toy(case)
    q = settings["q"]
    weighting = stateless(lambda view: jnp.exp(q * jnp.asarray(case["losses"])[view.cohort])) if q else "uniform"
    if settings["gradient_clipping"]:
        yield from _one_round_each(case, toy)
        return
    states = toy.replay(_algorithm(case, weighting), case)
    yield case.compare("w", toy.shared(states))
    yield case.compare("v", toy.own(states))
    if q:
        case.excuse("*_sample_weighted", "without the weights exp(q loss) that this case is for")
        case.excuse("n_samples", "weights are exp(q loss)")
        return
    states = toy.replay(_algorithm(case, by_samples(case)), case)
    yield case.compare("w_sample_weighted", toy.shared(states))
    yield case.compare("v_sample_weighted", toy.own(states))


def _one_round_each(case: Case, toy: Toy):
    """The server clips updates, which is not part of Ditto: every round starts from the stored models."""
    round = toy.round(_algorithm(case, "uniform"), len(case["h"]), case["selected"].shape[1])
    data = [toy.data(tape, case["h"], cohort) for tape, cohort in zip(case["tapes"], case["selected"], strict=True)]
    states = [run_rounds(round, data[:1], case["selected"][:1])[0]]
    for number in range(1, len(data)):
        server = states[-1].server._replace(shared={"params": toy.leaves(case["w"][number - 1])})
        clients = states[-1].clients._replace(memory={"own": {"params": toy.leaves(case["v"][number - 1])}})
        state = states[-1]._replace(server=server, clients=clients)
        states += run_rounds(round, data[number : number + 1], case["selected"][number : number + 1], state)
    yield case.compare("v", toy.own(states))
    case.excuse("*_sample_weighted", "its updates are cut to the median norm of the cohort")
    case.excuse("n_samples", "its updates are cut to the median norm of the cohort")


@covers("ditto", "paper_*")
def paper(case: Case):
    """A round in two parts: personal models get other gradients than the common one, which does not change then."""
    settings, toy, cohorts = case.meta, Toy(case), case["selected"]
    num_clients, weighting = len(case["h"]), by_samples(case)
    own_rate = settings["personal_learning_rate"]
    phases = [
        (_algorithm(case, weighting, learning_rate=0.0, personal_learning_rate=own_rate), case["personal_tapes"]),
        (_algorithm(case, weighting, personal_learning_rate=0.0), case["tapes"]),
    ]
    rounds = [(toy.round(algorithm, num_clients, cohorts.shape[1]), tapes) for algorithm, tapes in phases]
    state, states = None, []
    for number, cohort in enumerate(cohorts):
        for round, tapes in rounds:
            (state,) = run_rounds(round, [toy.data(tapes[number], case["h"], cohort)], cohort[None], state)
        states.append(state)
    yield case.compare("w", toy.shared(states))
    yield case.compare("v", toy.own(states))


@covers("ditto", "client_*")
def one_client(case: Case):
    settings, toy = case.meta, Toy(case)
    rates = [settings[name] for name in ("learning_rate", "momentum", "weight_decay")]
    algorithm = ditto(settings["lam"], optimizer=sgd_with_decay_of_weights(*rates), **ONE_BY_ONE)
    round = toy.round(algorithm, 1, 1)

    def train(tape: np.ndarray) -> State:
        data = toy.data(tape[None], case["h"])
        start = round.init(make_key(0), data)
        own = {"params": toy.leaves(case["v0"][None])}
        start = start._replace(clients=start.clients._replace(memory={"own": own}))
        return run_rounds(round, [data], np.zeros((1, 1), int), start)[0]

    yield case.compare("w", toy.shared([train(case["tapes"])])[0])
    v = toy.own([train(case["personal_tapes"])])[0, 0]
    if settings["momentum"]:
        expected = _pulled_within_momentum(case, *rates)
        yield case.contain("v", v, expected, OUTSIDE, "what the pull as a part of the gradient gives")
    else:
        yield case.compare("v", v)


def _pulled_within_momentum(case: Case, learning_rate: float, momentum: float, weight_decay: float) -> np.ndarray:
    v, buffer, is_weight = case["v0"], np.zeros_like(case["v0"]), np.isin(case["parts"], (0, 2))
    for tape in case["personal_tapes"]:
        gradient = case["h"][0] * v + tape + case.meta["lam"] * (v - case["w0"]) + weight_decay * is_weight * v
        buffer = momentum * buffer + gradient
        v = v - learning_rate * buffer
    return v
