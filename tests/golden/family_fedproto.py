"""FedProto: the authors' aggregation, local training and rounds."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fedproto
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round.program import make_round
from fedjax_het.server.summaries import class_weighted_mean
from tests.golden.cases import Case, covers, known
from tests.golden.networks import (
    class_counts,
    examples,
    initial_weights,
    nested,
    tanh_network,
    training_settings,
)
from tests.golden.replay import client_data
from tests.views import server_view

DURING = "collected in the last epoch while the model moved, which is not reproduced; ours are measured after it"


def prototypes_of(means: np.ndarray, counts: np.ndarray, weighting: str = "uniform") -> dict:
    """The published prototypes after the clients' class means [clients, class, feature], NaN where there is none."""
    reports = {"means": jnp.asarray(np.nan_to_num(means)), "counts": jnp.asarray(counts, float)}
    start = _published(np.full(means.shape[1:], np.nan))
    return class_weighted_mean(weighting).update(start, StackedUpdates(reports), server_view(len(means)))


def _published(means: np.ndarray) -> dict:
    return {"means": jnp.asarray(np.nan_to_num(means)), "is_known": jnp.asarray(~np.isnan(means).any(axis=-1))}


@covers("fedproto", "agg_*")
def aggregation(case: Case):
    for name, weighting in (("official_global", "uniform"), ("weighted_global", "samples")):
        ours = known(**prototypes_of(case["protos"], case["counts"], weighting))
        yield case.compare(name, ours)
        # Divided once more by the number of clients, if there are several that have a class.
        has_several = np.any(np.sum(case["counts"] > 0, axis=0) > 1)
        yield (case.refute if has_several else case.compare)("printed_global", ours)


def _start(case: Case, weights: dict, inputs: np.ndarray, labels: np.ndarray, counts: np.ndarray):
    """A compiled round of all clients, its data and its first state; weights [clients, ...]."""
    algorithm = fedproto(case.meta["lam"], **training_settings(case))
    num_clients, stored = labels.shape
    data = client_data(inputs.reshape(-1, inputs.shape[-1]), labels.reshape(-1), [stored] * num_clients)
    data = data._replace(train=data.train._replace(count=np.asarray(counts, np.int32)))
    round = make_round(algorithm, tanh_network({name: values[0] for name, values in weights.items()}), num_clients)
    state = round.init(make_key(0), data)
    state = state._replace(clients=state.clients._replace(personal=nested(weights)))
    return jax.jit(round.step_with_messages), data, state


def _knowing(state, means: np.ndarray):
    return state._replace(server=state.server._replace(published={"prototypes": _published(means)}))


def _weights_of(personal: dict, name: str):
    return personal["params"]["classifier" if name in ("W2", "b2") else "body"][name]


@covers("fedproto", "local_*")
def local_training(case: Case):
    weights = {name: values[None] for name, values in initial_weights(case).items()}
    inputs, labels = case["X"].reshape(1, -1, case["X"].shape[-1]), case["Y"].reshape(1, -1)
    step, data, state = _start(case, weights, inputs, labels, np.array([labels.size]))
    state, metrics, told = step(_knowing(state, case["global_protos"]), data, make_key(0))
    for name in weights:
        yield case.compare(f"out__{name}", _weights_of(state.clients.personal, name)[0])
    yield case.compare("loss_total", metrics.loss)
    report = jax.tree.map(lambda leaf: leaf[0], told.uploads.reports["prototypes"])
    yield case.compare("local_counts", report["counts"])
    yield case.compare("protos_after", known(report["means"], report["counts"] > 0))
    case.excuse("local_protos", DURING)
    case.excuse("loss_?[er]*", "the parts of loss_total, which is held")


@covers("fedproto", "rounds_*")
def rounds(case: Case):
    """If the release measures in the last epoch, our clients get its prototypes before each round."""
    weights, (inputs, labels) = initial_weights(case), examples(case)
    counts, is_during = np.sum(case["Y"] >= 0, axis=(1, 2)), case.meta["prototypes_measured"] == "during"
    by_class = class_counts(case)
    yield case.compare("counts", by_class)
    step, data, state = _start(case, weights, inputs, labels, counts)
    for number, sent in enumerate(case["global_protos"][:-1]):
        state = _knowing(state, sent) if is_during else state
        state, _, told = step(state, data, make_key(0))
        current = lambda stored, number=number: stored[number]  # noqa: E731
        for name in weights:
            yield case.compare(f"client__{name}", _weights_of(state.clients.personal, name), part=current)
        report = told.uploads.reports["prototypes"]
        published = state.server.published["prototypes"]
        if is_during:
            published = prototypes_of(case["local_protos"][number], by_class)
        else:
            yield case.compare("local_protos", known(report["means"], report["counts"] > 0), part=current)
        after = lambda stored, number=number: stored[number + 1]  # noqa: E731
        yield case.compare("global_protos", known(**published), part=after)
    body, head = state.clients.personal["params"]["body"], state.clients.personal["params"]["classifier"]
    features = np.tanh(case["x_test"] @ np.swapaxes(body["W1"], 1, 2) + np.asarray(body["b1"])[:, None])
    logits = features @ np.swapaxes(head["W2"], 1, 2) + np.asarray(head["b2"])[:, None]
    yield case.compare("pred_head", np.argmax(logits, axis=-1))
    case.excuse("pred_proto", "prediction by the nearest prototype, which is not offered")
    case.excuse("official_acc_*", "running totals over users and over both predictors, by an oversight")
    case.excuse("y_test", "the labels of those accuracies")
    case.excuse("losses", "means over batches of unequal sizes; ours are over examples")
