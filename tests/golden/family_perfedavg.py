"""Per-FedAvg: other repositories' codes and transcriptions of the paper's rule."""

from dataclasses import replace

import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import perfedavg
from fedjax_het.client.gradients import META_PARTS
from fedjax_het.server.aggregators import mean
from tests.golden.cases import Case, covers
from tests.golden.family_clusters import toy_of_vector
from tests.golden.replay import client_data, replay_rounds, softmax_objective, vector_model
from tests.golden.toy_leaves import ONE_BY_ONE, by_samples, own_models, run_rounds


def _rounds(case: Case, hessian: str, weighting: str = "uniform", **options):
    """(the toy, the round, the states after each round)."""
    settings, cohorts = case.meta, case["selected"]
    toy, num_clients = toy_of_vector(case["w0"]), int(case["n_clients"])
    algorithm = perfedavg(
        settings["alpha"], hessian, learning_rate=settings["beta"], weighting="uniform", **ONE_BY_ONE, **options
    )
    algorithm = replace(algorithm, aggregator=mean(by_samples(case) if weighting == "samples" else weighting))
    round = toy.round(algorithm, num_clients, cohorts.shape[1])
    data = [
        _data(case["tapes"][number], case["curvatures"][number], num_clients, cohort)
        for number, cohort in enumerate(cohorts)
    ]
    return toy, round, run_rounds(round, data, cohorts)


def _data(tapes: np.ndarray, curvatures: np.ndarray, num_clients: int, cohort):
    """Client cohort[s] has the gradients tapes[s], curvatures[s] [steps, parts, d], part by part of each step."""
    rows = np.concatenate([tapes, curvatures], axis=-1)
    inputs = np.zeros((num_clients, *rows.shape[1:]))
    inputs[cohort] = rows
    inputs = inputs.reshape(num_clients, -1, rows.shape[-1])
    return client_data(
        inputs.reshape(-1, rows.shape[-1]), np.zeros(inputs[..., 0].size), [inputs.shape[1]] * num_clients
    )


def _personal(case: Case, toy, round, states):
    adapt = _data(case["adapt_tapes"][:, None, None], case["adapt_curvatures"][:, None, None], int(case["n_clients"]),
                  np.arange(int(case["n_clients"])))  # fmt: skip
    return np.stack([toy.vector(own_models(round, state, adapt)["params"]) for state in states])


@covers("perfedavg", "fo_*")
@covers("perfedavg", "hf_*")
def rounds(case: Case):
    settings, is_second = case.meta, case.meta["hf"]
    is_by_samples = settings["weights"] == "samples"
    hessian = "exact" if is_second else "none"
    toy, round, states = _rounds(case, hessian, settings["weights"])
    yield case.compare("w", toy.shared(states))
    yield case.compare("personal", _personal(case, toy, round, states))
    others = _rounds(case, hessian, "uniform" if is_by_samples else "samples")[2]
    yield case.compare("w_uniform" if is_by_samples else "w_sample_weighted", toy.shared(others))
    if np.any(case["curvatures"]):
        yield case.refute("x_wrong_not_restored", toy.shared(states))
    else:
        case.excuse("x_wrong_not_restored", "without gradients or curvature it is the same or a shift")
    if is_second:
        yield case.compare("w_first_order", toy.shared(_rounds_of_two(case)))
        difference = _rounds(case, "difference", delta=1e-3)[2]
        yield case.compare("w", toy.shared(difference))
    case.excuse("local", "they show in w")


def _rounds_of_two(case: Case):
    """The first-order rule on the first two of each three batches."""
    cut = {name: case[name][..., :2, :] for name in ("tapes", "curvatures")}
    whole = {name: case[name] for name in ("w0", "n_clients", "selected")}
    return _rounds(_Part(case, {**whole, **cut}), "none")[2]


class _Part(dict):
    def __init__(self, case: Case, arrays: dict):
        super().__init__(arrays)
        self.meta = case.meta


@covers("perfedavg", "fo_babu_repo_s0")
def shared_momentum(case: Case):
    toy, _, states = _rounds(case, "none")
    case.meta["momentum"]
    yield case.compare("w_right", toy.shared(states))
    yield case.refute("x_wrong_momentum_shared", toy.shared(states))
    case.excuse("local", "of x_wrong_momentum_shared")
    case.excuse("n_samples", "equal weights")


@covers("perfedavg", "evaluate_*")
def personal_model(case: Case):
    settings = case.meta
    toy = toy_of_vector(case["w"])
    round = toy.round(perfedavg(settings["alpha"], learning_rate=settings["beta"], **ONE_BY_ONE), 1, 1)
    data = _data(case["tapes"][None, :1, None], case["curvatures"][None, :1, None], 1, [0])
    state = round.init(make_key(0), data)
    ours = toy.vector(own_models(round, state, data)["params"])[0]
    yield case.compare("personal_right", ours)
    yield case.refute("x_wrong_two_test_steps", ours)


@covers("perfedavg", "softmax_*")
def softmax_regression(case: Case):
    settings, inputs, labels = case.meta, case["inputs"], case["labels"]
    num_classes = int(labels.max()) + 1
    model = vector_model(case["w0"])

    def train(hessian: str, parts=(0, 1, 2), **options):
        number = META_PARTS[hessian]
        chosen = list(parts[:number])
        # Example e of a batch is in part e mod `number`.
        x, y = (np.swapaxes(stack[:, chosen], 1, 2) for stack in (inputs, labels))
        x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1)
        algorithm = perfedavg(
            settings["alpha"],
            hessian,
            learning_rate=settings["beta"],
            batch_size=inputs.shape[2],
            shuffle=False,
            **options,
        )
        algorithm = replace(algorithm, objective=(softmax_objective(num_classes),))
        replay = replay_rounds(algorithm, model, x[None, None], y[None, None], np.zeros((1, 1), int), 1)
        return replay.weights()[0]

    yield case.compare("w_fo", train("none"))
    yield case.compare("w_hf_exact", train("exact"))
    yield case.compare("w_hf_fd", train("difference", delta=settings["delta"]))
    yield case.compare("w_maml_two_batches", train("exact", (0, 1, 0)))
    gap = np.abs(case["w_hf_fd"] - case["w_hf_exact"]).max()
    assert settings["difference_of_fd"] < 1e-7 and gap < 1e-6
