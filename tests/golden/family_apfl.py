"""APFL: the authors' code on a network, the paper's rule on the toy leaves, and three other repositories."""

import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import apfl
from fedjax_het.types import State
from tests.golden.cases import Case, covers
from tests.golden.networks import Network, batches_as_data
from tests.golden.toy_leaves import ONE_BY_ONE, Toy, own_models, run_rounds

STALE = "a round's first gradient is taken at the mixture with the client's last copy of w"
OTHERS = {  # by the repository in a case's provenance
    "lgcollins/FedRep": "the mixture is alpha v + alpha w, and one momentum buffer serves w and v",
    "TsingZ0/PFLlib": "v is trained alone, alpha moves in every step, and v is replaced by the mixture",
}


@covers("apfl", "official_*")
def released(case: Case):
    settings, network = case.meta, Network.from_case(case)
    cohorts, (_, cohort, _, size) = case["selected"], case["y"].shape
    num_clients = len(case["alpha0"])
    settings.confirm(activation="tanh" if settings["hidden"] else None, momentum_kept_between_rounds=True)
    data = [
        batches_as_data(*batch[:2], num_clients, batch[2]) for batch in zip(case["X"], case["y"], cohorts, strict=True)
    ]

    def replay(**options) -> list[State]:
        algorithm = apfl(
            adaptive=settings["adaptive_alpha"],
            learning_rate=settings["learning_rate"],
            momentum=settings["momentum"],
            weight_decay=settings["weight_decay"],
            batch_size=size,
            shuffle=False,
            **options,
        )
        round = network.round(algorithm, num_clients, cohort)
        state = round.init(make_key(0), data[0])
        own = state.clients.memory["own"]._replace(alpha=jnp.asarray(case["alpha0"]))
        state = state._replace(clients=state.clients._replace(memory={"own": own}))
        return run_rounds(round, data, cohorts, state)

    for suffix, states in (("", replay(preset="released")), ("_paper", replay(keep_momentum=True))):
        yield case.compare("w", np.stack([network.vector(state.server.shared["params"]) for state in states]))
        own = [state.clients.memory["own"] for state in states]
        yield case.compare(f"v{suffix}", np.stack([network.vector(memory.model["params"]) for memory in own]))
        yield case.compare(f"alpha{suffix}", np.stack([memory.alpha for memory in own]))
    for name in ("v", "alpha"):
        assert np.allclose(case[name], case[f"{name}_paper"]) == (settings[f"paper_differs_{name}"] < 1e-9)


@covers("apfl", "paper_*")
def paper(case: Case):
    for suffix, order in (("", "before"), ("_after", "after")):
        w, v, mixed = _replay(case, order)
        yield case.compare("w", w)
        yield case.compare(f"v{suffix}", v)
        yield case.compare(f"mixed{suffix}", mixed)


def _replay(case: Case, order: str = "before"):
    """(w, v, mixtures with the server's w) after each round."""
    settings, toy, cohorts = case.meta, Toy(case), case["selected"]
    rates = {"learning_rate": settings["learning_rate"], "adaptive": False}
    algorithm = apfl(settings["alpha"], order=order, **rates, **ONE_BY_ONE)
    states = toy.replay(algorithm, case)
    round = toy.round(algorithm, len(case["h"]), cohorts.shape[1])
    data = toy.data(case["tapes"][0], case["h"], cohorts[0])
    v = [toy.vector(state.clients.memory["own"].model["params"]) for state in states]
    mixed = [toy.vector(own_models(round, state, data)["params"]) for state in states]
    return toy.shared(states), np.stack(v), np.stack(mixed)


@covers("apfl", "ditto_repo_*")
def ditto_repository(case: Case):
    w, v, mixed = _replay(case)
    yield case.compare("w", w)
    yield case.compare("v_paper", v)
    yield case.compare("mixed_paper", mixed)
    if case.meta["paper_differs_v"]:
        yield case.contain("v", v, case["v_paper"], STALE, "the mixture with the received w, v_paper")
    else:
        yield case.compare("v", v)
    yield case.contain("mixed_stored", mixed, case["mixed_paper"], STALE, "the mixture with the present w, mixed_paper")


@covers("apfl", "client_*")
def one_client(case: Case):
    """Compared with a transcription of the paper's step."""
    settings, toy = case.meta, Toy(case)
    rates = [settings[name] for name in ("learning_rate", "momentum", "weight_decay")]
    is_adaptive = "alpha" in case
    algorithm = apfl(settings["alpha0"], is_adaptive, learning_rate=rates[0], momentum=rates[1], **ONE_BY_ONE)
    round, data = toy.round(algorithm, 1, 1), toy.data(case["tapes"][None], case["h"])
    state = round.init(make_key(0), data)
    own = state.clients.memory["own"]._replace(model={"params": toy.leaves(case["v0"][None])})
    state = state._replace(clients=state.clients._replace(memory={"own": own}))
    (state,) = run_rounds(round, [data], np.zeros((1, 1), int), state)
    own = state.clients.memory["own"]
    fault = OTHERS[settings["provenance"].split("@")[0]]
    w, v, alpha = _transcribe(case, *rates[:2], is_adaptive)
    ours = {"w": toy.vector(state.server.shared["params"]), "v": toy.vector(own.model["params"])[0]}
    if rates[1]:
        yield case.contain("w", ours["w"], w, fault, "the paper's rule in NumPy")
    else:
        yield case.compare("w", ours["w"])
    yield case.contain("v", ours["v"], v, fault, "the paper's rule in NumPy")
    if is_adaptive:
        yield case.contain("alpha", own.alpha[0], alpha, fault, "the paper's rule in NumPy")


def _transcribe(case: Case, learning_rate: float, momentum: float, is_adaptive: bool):
    w, v, alpha, h = case["w0"], case["v0"], case.meta["alpha0"], case["h"][0]
    buffers = np.zeros((2, len(w)))
    for number, tape in enumerate(case["tapes"]):
        slope = h * (alpha * v + (1 - alpha) * w) + tape
        buffers = momentum * buffers + np.stack([h * w + tape, alpha * slope])
        moved = np.clip(alpha - learning_rate * (v - w) @ slope, 0, 1)
        w, v = np.stack([w, v]) - learning_rate * buffers
        alpha = moved if is_adaptive and not number else alpha
    return w, v, alpha
