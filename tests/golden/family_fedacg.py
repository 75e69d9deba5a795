"""FedACG: the authors' code, and the paper's equations."""

import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import fedacg
from fedjax_het.client.optimizers import torch_sgd
from tests.golden.cases import Case, covers
from tests.golden.replay import Replay, rate_decay, replay_case


@covers("fedacg", "*")
def training(case: Case):
    settings = case.meta
    settings.confirm(epsilon_clip=1e-6, beta=2 * settings["prox_weight"])
    decay, num_batches = settings.get("lr_decay", 1.0), case["inputs" if "inputs" in case else "tapes"].shape[2]

    def build(beta: float, clip: float | None, decays_in_round: bool = False, **local) -> Algorithm:
        optimizer = None
        if decays_in_round:  # the release's rate of local epoch e, an option of ours by the optimizer alone
            steps = optax.scale_by_schedule(lambda count: jnp.asarray(decay, float) ** (count // num_batches))
            optimizer = optax.chain(torch_sgd(settings["lr"]), steps)
        return fedacg(
            settings["lam"],
            beta,
            clip=clip,
            learning_rate=settings["lr"],
            weight_decay=settings.get("wd", 0.0),
            momentum=settings.get("momentum", 0.0),
            learning_rate_schedule=rate_decay(decay) if decay != 1 else None,
            optimizer=optimizer,
            **({"epochs": settings["epochs"]} if "epochs" in settings else {}),
            **local,
        )

    def run(beta: float, clip: float | None = None, decays_in_round: bool = False) -> tuple[Algorithm, Replay]:
        algorithm = build(beta, clip, decays_in_round)
        return algorithm, replay_case(case, lambda **local: build(beta, clip, decays_in_round, **local))

    decays_in_round = "x_constant_in_round" in case
    clipped = run(settings["beta"], settings["clip"], decays_in_round)
    yield case.compare("x", _tested(*clipped))
    yield case.compare("m", _momenta(case, clipped[1]))
    yield case.compare("sent", np.concatenate([case["x0"][None], clipped[1].weights()[:-1]]))
    yield case.compare("local", clipped[1].local())
    plain = run(settings["beta"], None, decays_in_round)
    yield case.compare("x_paper", _tested(*plain))
    yield case.compare("m_paper", _momenta(case, plain[1]))
    yield case.compare("x_half_weight", _tested(*run(settings["prox_weight"], None, decays_in_round)))
    if decays_in_round:
        yield case.compare("x_constant_in_round", _tested(*run(settings["beta"])))


def _tested(algorithm: Algorithm, replay: Replay) -> np.ndarray:
    return np.stack([algorithm.evaluated(state.server)["params"]["w"] for state in replay.states])


def _momenta(case: Case, replay: Replay) -> np.ndarray:
    return np.stack([state.server.optimizer.step["w"] for state in replay.states]) / case.meta["lam"]
