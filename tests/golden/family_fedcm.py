"""FedCM: a third party's code on stored gradients, and the paper's equations."""

import numpy as np

from fedjax_het.algorithms import fedcm
from tests.golden.cases import Case, covers
from tests.golden.replay import replay_gradients


@covers("fedcm", "tape_*")
def tape(case: Case):
    """x is clipped, which the third party adds; its server divides by the rate, as ours does."""
    clipped = _states(case, float(case["clip"]))
    yield case.compare("x", _weights(clipped))
    momenta = np.stack([state.server.published["momentum"]["w"] for state in clipped])
    yield case.compare("delta_used", np.concatenate([np.zeros_like(momenta[:1]), momenta[:-1]]))
    yield case.compare("x_noclip", _weights(_states(case, None)))


def _states(case: Case, clip: float | None) -> list:
    algorithm = fedcm(
        float(case["lr"]),
        float(case["alpha"]),
        server_learning_rate=float(case["lr_global"]),
        clip=clip,
        batch_size=1,
        shuffle=False,
    )
    return replay_gradients(algorithm, case["x0"], case["tapes"], case["selected"], int(case["n_clients"]))


def _weights(states: list) -> np.ndarray:
    return np.stack([state.server.shared["params"]["w"] for state in states])
