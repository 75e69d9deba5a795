"""FedAvg, FedProx and SCAFFOLD."""

import numpy as np

from fedjax_het.algorithms import fedavg, fedprox, scaffold
from fedjax_het.server.aggregators import mean
from tests.golden.cases import Case, covers
from tests.golden.replay import combine, replay_gradients

ONE_BY_ONE = {"batch_size": 1, "shuffle": False}


@covers("fedavg", "local_sgd_*")
def local_sgd(case: Case):
    algorithm = fedavg(
        learning_rate=float(case["lr"]),
        momentum=float(case["momentum"]),
        weight_decay=float(case["weight_decay"]),
        **ONE_BY_ONE,
    )
    state = replay_gradients(algorithm, case["w0"], case["tape"][None, None], np.array([[0]]), 1)[-1]
    yield case.compare("w_end", state.server.shared["params"]["w"])


@covers("fedavg", "*")
def aggregation(case: Case):
    ours = combine(mean(), case["W"], case["n_samples"])
    for name in ("agg_f64", "agg_fedld_repo", "agg_ref"):
        yield case.compare(name, ours, 1e-12, scale=float(np.abs(case["W"]).max()))
    case.excuse("*num_batches_tracked*", "the released code truncates integer buffers; ours are float or absent")


@covers("fedprox", "tape_*")
def proximal_tape(case: Case):
    momentum, decay = float(case["momentum"]), float(case["weight_decay"])

    def train(form: str):
        algorithm = fedprox(
            mu=float(case["mu"]),
            form=form,
            learning_rate=float(case["lr"]),
            momentum=momentum,
            weight_decay=decay,
            **ONE_BY_ONE,
        )
        state = replay_gradients(algorithm, case["w0"], case["tape"][None, None], np.array([[0]]), 1)[-1]
        return state.server.shared["params"]["w"]

    squared = train("squared")
    yield case.compare("w_loss", squared)
    yield case.compare("w_novaprox", squared)
    yield case.compare("w_norm", train("norm_per_tensor"))
    if momentum == 0 and decay == 0:
        yield case.compare("w_pfllib", squared)
    else:
        case.excuse("w_pfllib", "made without momentum and decay, which this case has")


@covers("scaffold", "tape_*")
def scaffold_tape(case: Case):
    algorithm = scaffold(float(case["lr"]), float(case["lr_global"]), **ONE_BY_ONE)
    states = replay_gradients(algorithm, case["x0"], case["tapes"], case["selected"], int(case["n_clients"]))
    x = np.stack([state.server.shared["params"]["w"] for state in states])
    yield case.compare("x", x)
    yield case.compare("x_flsim", x)
    yield case.compare("c", np.stack([state.server.published["control"]["w"] for state in states]))
    yield case.compare("c_i", np.stack([state.clients.memory["control"]["w"] for state in states]))
