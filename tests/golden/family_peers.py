"""Mixtures of other clients' models: FedAMP, FedFomo, FedCAC."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fedamp, fedcac, fedfomo
from fedjax_het.client.local_updates import sgd
from fedjax_het.client.peers import (
    cosine_weights,
    first_order_gains,
    gaussian_weights,
    lower_losses,
    move_to,
    peer_mixture,
)
from fedjax_het.server.aggregators import mean
from fedjax_het.server.client_models import ClientModels, collaboration_threshold, overlaps_of
from fedjax_het.types import Rows
from tests.golden.cases import Case, covers
from tests.golden.family_clusters import toy_of_vector
from tests.golden.stored_clients import StoredClients, without_partial_batches
from tests.golden.toy_leaves import ONE_BY_ONE, Toy, by_samples, own_models, run_rounds

UNUSED = "PFLlib's term has no gradient, and its weights take the distance without the square"


# ---- FedAMP ----------------------------------------------------------------------------------------------------------
def whole(weigh, models: np.ndarray, client: int) -> np.ndarray:
    """The weights of all clients for vectors [clients, d], with that of the own model."""
    others = np.array(weigh(models[client], models, np.arange(len(models)) != client))
    others[client] = 1 - others.sum()
    return others


class Mixtures:
    """Rounds of a FedAMP case on the toy model, all of whose entries are in one leaf."""

    def __init__(self, case: Case):
        self.case, self.toy, self.num_clients = case, toy_of_vector(case["v0"][0]), len(case["v0"])
        meta = case.meta
        self.weigh = gaussian_weights(meta["alpha"], meta["sigma"], is_capped=False)
        self.options = {"is_capped": False, "learning_rate": meta["learning_rate"], **ONE_BY_ONE}

    def replay(self, start=None, **options) -> np.ndarray:
        """The models of all clients after each round, with another start rule if one is given."""
        case, cohorts, meta = self.case, self.case["selected"], self.case.meta
        arguments = zip(case["tapes"], [case["h"]] * len(cohorts), cohorts, strict=True)
        data = [self.toy.data(*round) for round in arguments]
        algorithm = fedamp(meta["lam"], meta["alpha"], meta["sigma"], **self.options, **options)
        algorithm = replace(algorithm, start=start) if start else algorithm
        round = self.toy.round(algorithm, self.num_clients, cohorts.shape[1])
        state = round.init(make_key(0), data[0])
        known = ClientModels({"params": self.toy.leaves(case["v0"])}, jnp.ones(self.num_clients, bool))
        state = state._replace(server=state.server._replace(published={"models": known}))
        states = run_rounds(round, data, cohorts, state)
        return np.stack([self.toy.vector(s.server.published["models"].models["params"]) for s in states])

    def start_of_last_cohort(self, problem, view, key):
        """PFLlib's mixture: of the models of the cohort before; the own one in the first round."""
        cohorts = self.case["selected"]
        is_sent = np.zeros((len(cohorts), self.num_clients), bool)
        for number, cohort in enumerate(cohorts[:-1]):
            is_sent[number + 1, cohort] = True

        def weigh(own, models, is_other):
            return self.weigh(own, models, is_other & jnp.asarray(is_sent)[view.received.round])

        return peer_mixture(weigh)(problem, view, key)


@covers("fedamp", "paper_*")
def attentive_mixtures(case: Case):
    mixtures, cohorts = Mixtures(case), case["selected"]
    v = mixtures.replay()
    yield case.compare("v", v)
    before, xi = np.concatenate([case["v0"][None], v[:-1]]), np.zeros(case["xi"].shape)
    weigh = jax.jit(mixtures.weigh)
    for number, cohort in enumerate(cohorts):
        for client in cohort:
            xi[number, client] = whole(weigh, before[number], client)
    yield case.compare("xi", xi)
    is_asked = np.stack([np.isin(np.arange(mixtures.num_clients), cohort) for cohort in cohorts])
    yield case.compare("u", np.where(is_asked[..., None], xi @ before, case["u"]))
    yield case.compare("v_start_from_own", mixtures.replay(mixtures.start_of_last_cohort, start_from="own"))
    for name in ("x_wrong_pfllib_no_pull", "x_wrong_norm_not_squared"):
        if np.allclose(case["v"], case[name]):
            case.excuse(name, "the mixture is the own model")
        else:
            yield case.refute(name, v)
    case.excuse("u_*", UNUSED)


@covers("fedamp", "heur_*")
def mixtures_by_cosine(case: Case):
    weigh = cosine_weights(case.meta["self_weight"], case.meta["sigma"])
    v = jnp.asarray(case["v"])
    xi = np.stack([whole(weigh, v, client) for client in range(len(v))])
    yield case.compare("xi", xi)
    yield case.compare("u", xi @ case["v"])


# ---- FedCAC ----------------------------------------------------------------------------------------------------------
@covers("fedcac", "*")
def critical_entries(case: Case):
    meta, (rounds, num_clients) = case.meta, case["v"].shape[:2]
    toy = Toy({"parts": np.repeat(np.arange(4), meta["sizes"]), "w0": case["w0"]})
    algorithm = fedcac(meta["tau"], meta["beta"], learning_rate=meta["learning_rate"], **ONE_BY_ONE)
    algorithm = replace(algorithm, aggregator=mean(by_samples(case)))
    cohorts = np.broadcast_to(np.arange(num_clients), (rounds, num_clients))
    round = toy.round(algorithm, num_clients, num_clients)
    data = [toy.data(tapes, case["h"]) for tapes in case["tapes"]]
    states = run_rounds(round, data, cohorts)
    yield case.compare("w", toy.shared(states))
    published = [state.server.published["critical"] for state in states]
    v = np.stack([toy.vector(known.clients.models["params"]) for known in published])
    yield case.compare("v", v)
    masks = np.stack([toy.vector(known.masks) for known in published])
    yield case.compare("masks", masks)
    overlaps = [overlaps_of(known.masks) for known in published]
    yield case.compare("overlap", np.stack(overlaps))
    everyone = jnp.ones(num_clients, bool)
    thresholds = [collaboration_threshold(o, everyone, number, meta["beta"]) for number, o in enumerate(overlaps)]
    yield case.compare("threshold", np.stack(thresholds))
    weights = np.stack([known.weights for known in published])
    yield case.compare("custom", weights @ v)
    starts = [toy.vector(own_models(round, state, data[0])["params"]) for state in states]
    yield case.compare("start", np.stack(starts))


# ---- FedFomo ---------------------------------------------------------------------------------------------------------
@covers("fedfomo", "official_*")
def rule(case: Case):
    base, models = ({"params": {"w": jnp.asarray(case[name])}} for name in ("base", "models"))
    losses = case["base_loss"], case["losses"]
    case.meta.confirm(baseline="first_model", parts="two tensors: entries 0-2 and the rest")
    for name, suffix in ((case.meta["norm"], ""), ("euclidean", "_l2")):
        if name == "l2_root":
            for array in ("raw_weights", "weights", "new"):
                case.excuse(array, "the norms of the tensors are added")
            continue
        gains = first_order_gains(*losses, base, models, {"l2": "squared"}.get(name, name))
        yield case.compare(f"raw_weights{suffix}", gains)
        positive = np.maximum(gains, 0)
        yield case.compare(f"weights{suffix}", positive / (positive.sum() or 1))
        yield case.compare(f"new{suffix}", move_to(base, models, gains)["params"]["w"])
    case.excuse("affinity_change", "divided by the absolute sum")


@covers("fedfomo", "pfllib_*")
def rounds(case: Case):
    meta, clients = case.meta, StoredClients(case)
    assert np.array_equal(case["n_validation"], meta["validation_share"] * clients.counts // 1)
    counts, num_valid, received = clients.counts, np.asarray(case["n_validation"]), jnp.asarray(case["received"])
    rows = clients.data.train
    places = (counts - num_valid)[:, None] + np.arange(max(num_valid))
    ends = np.take_along_axis(rows.index, np.minimum(places, rows.index.shape[1] - 1), axis=1)
    data = clients.data._replace(train=Rows(rows.index, counts - num_valid), valid=Rows(ends, num_valid))

    def choose(view, key):
        ids = received[view.received.round, view.client]
        return jnp.maximum(ids, 0), ids >= 0

    local_update = without_partial_batches(sgd(**clients.training, epochs=meta["local_epochs"]))
    algorithm = fedfomo(meta["num_download"], **clients.training)
    algorithm = replace(algorithm, local_update=lower_losses(local_update, choose, "valid"))
    history = clients.run(algorithm, data=[data] * len(case["selected"]))
    read = lambda state: clients.vector(state.server.published["models"].models["params"])  # noqa: E731
    yield case.compare("v_paper", history.stack(read))
    affinity = history.stack(lambda state: state.server.published["affinity"])
    yield case.compare("affinity_paper", affinity + np.eye(len(counts)))
    yield case.compare("weights_paper", np.diff(affinity, axis=0, prepend=0))
    case.excuse("start_paper", "they show in v_paper")
    for name in ("v", "start", "affinity", "weights"):
        case.excuse(name, "losses are compared with the start of a client's round before, and own models are left")
