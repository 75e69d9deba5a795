"""FedALA: the authors' code."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithms import fedala
from fedjax_het.client.adaptive_aggregation import from_mixture, learned_mixture
from fedjax_het.client.local_updates import sgd
from fedjax_het.client.memories import result
from fedjax_het.sharing import HEAD
from tests.golden.cases import Case, covers
from tests.golden.stored_clients import StoredClients, without_partial_batches

EVERYWHERE = "at all clients in every round, asked or not"


@covers("fedala", "*")
def rounds(case: Case):
    meta, clients = case.meta, StoredClients(case)
    chosen = (HEAD,) if meta["layer_idx"] == 2 else ("params/*",)
    assert meta["offset"] == (25 if meta["layer_idx"] == 2 else 0)
    first = jnp.asarray(case["subset_start"])
    mix = learned_mixture(
        chosen,
        meta["eta"],
        meta["rand_percent"] / 100,
        meta["batch_size"],
        meta["threshold"],
        meta["num_pre_loss"],
        draw=lambda view, key, limit: first[view.received.round, view.client],
    )
    local_update = without_partial_batches(sgd(**clients.training, epochs=meta["local_epochs"]))
    algorithm = fedala(chosen, **clients.training)

    algorithm = replace(
        algorithm,
        local_update=_with_start(from_mixture(local_update, mix), mix),
        memory=dict(algorithm.memory) | {"start": result("start")},
    )
    history = clients.run(algorithm)
    yield case.compare("w_cohort_only", history.stack(lambda state: clients.vector(state.server.shared["params"])))

    def own(state, name):
        kept = state.clients.memory[name]
        if name == "start":
            return clients.vector(kept["params"])
        return np.where(kept["is_known"][:, None], clients.vector(kept["value"]["params"]), case["w0"])

    yield case.compare("v_cohort_only", history.stack(lambda state: own(state, "own")))
    is_asked = np.stack([np.isin(np.arange(len(clients.counts)), cohort) for cohort in case["selected"]])
    ours, theirs = history.stack(lambda state: own(state, "start")), case["initialised_cohort_only"]
    yield case.compare("initialised_cohort_only", np.where(is_asked[..., None], ours, theirs))
    weights = history.stack(lambda state: clients.vector(state.clients.memory["mixture"].weights["params"]))
    assert np.all((weights >= 0) & (weights <= 1))
    yield case.compare("weights_cohort_only", weights)
    for name in ("w", "v", "initialised", "weights", "ala_epochs"):
        case.excuse(name, f"the mixture is learned {EVERYWHERE}")
    case.excuse("ala_epochs_cohort_only", "they show in the weights")


def _with_start(local_update, mix):
    """The local update with the start as a result, too."""

    def train(problem, view, key):
        trained = local_update.train(problem, view, key)
        return trained._replace(results={**trained.results, "start": mix(problem, view, key)[0]})

    return local_update._replace(train=train)
