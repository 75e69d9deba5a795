"""Statistics and stores of features: pFedFDA and kNN-Per, the authors' codes."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithms import pfedfda
from fedjax_het.client.gaussian_head import (
    class_priors,
    cross_validated_loss,
    discriminant_head,
    estimate_gaussian,
    interpolate,
)
from fedjax_het.client.stored_features import StoredFeatures
from fedjax_het.models._neighbours import vote_of_nearest
from tests.golden.cases import Case, covers
from tests.golden.stored_clients import StoredClients, flatten_layer

GRID = np.linspace(0, 1, 11)


def stored(features, labels) -> StoredFeatures:
    return StoredFeatures(jnp.asarray(features), jnp.asarray(labels, jnp.int32), jnp.ones(len(labels), bool))


class _OneClient(dict):
    """A case of one client as `StoredClients` takes it."""

    def __init__(self, case: Case):
        one = {"n_samples": np.array([len(case["labels"])]), "selected": np.zeros((1, 1), int)}
        super().__init__(w0=case["w0"], inputs=case["inputs"][None], labels=case["labels"][None], **one)
        self.meta = case.meta


@covers("pfedfda", "*")
def discriminants(case: Case):
    meta, common = case.meta, {"means": case["global_means"], "covariance": case["global_covariance"]}
    meta.confirm(eps=1e-4)
    labels, num_classes = case["labels"], len(case["global_means"])
    priors = class_priors(jnp.bincount(labels, length=num_classes))
    yield case.compare("priors", priors)
    head = discriminant_head(common, priors)
    yield case.compare("head_weight", head["kernel"].T)
    yield case.compare("head_bias", head["bias"])
    yield from _training(case, common)

    collected = stored(case["collected_features"], case["collected_labels"])
    own = estimate_gaussian(collected, common["means"], "released")
    final = estimate_gaussian(stored(case["final_features"], labels), common["means"])
    for name in ("means", "covariance"):
        yield case.compare(name, own[name])
        yield case.compare(f"{name}_final", final[name])
    first = np.isin(np.arange(len(collected.labels)), case["fold_train"][0])
    loss = jax.jit(lambda betas: cross_validated_loss(collected, jnp.asarray(first), common, priors, "released", betas))
    is_single = meta["single_beta"]
    assert np.allclose(case["beta_grid"], GRID)
    losses = np.array([[loss(jnp.array([a, a if is_single else b])) for b in GRID] for a in GRID])
    yield case.compare("cv_loss", losses)
    best = GRID[np.array(np.unravel_index(np.argmin(losses), losses.shape))]
    best = np.full(2, best[0]) if is_single else best
    # The search of the case is finer than ours; L-BFGS may end anywhere.
    assert loss(jnp.asarray(best)) <= meta["loss_at_released_beta"] + 2e-3
    assert np.all(np.abs(best - case["beta_grid_search"]) <= 0.05)
    adapted = interpolate(jnp.asarray(case["beta_released"]), own, common)
    for name in ("means", "covariance"):
        yield case.compare(f"adaptive_{name}", adapted[name])


def _training(case: Case, common: dict):
    """The extractor after training with the fixed head."""
    meta, clients = case.meta, StoredClients(_OneClient(case))
    algorithm = pfedfda(
        epochs=meta["local_epochs"], momentum=meta["momentum"], weight_decay=meta["weight_decay"], **clients.training
    )

    def begin(state):
        shared = state.server.shared | {"gaussian": jax.tree.map(jnp.asarray, common)}
        return state._replace(server=state.server._replace(shared=shared))

    history = clients.run(algorithm, begin)
    yield case.compare("base", flatten_layer(history.states[0].server.shared["params"]["body"]))
    ours = history.states[0].server.shared["gaussian"]
    final = {name: case[f"{name}_final"] for name in ("means", "covariance")}
    # Whatever beta is chosen, the statistics are between the received ones and those of the trained features.
    shares = [(ours[name] - common[name]) / (final[name] - common[name] + 1e-30) for name in final]
    beta = np.median(shares[1])
    for name in final:
        assert np.allclose(ours[name], beta * final[name] + (1 - beta) * common[name], atol=1e-8)


@covers("knnper", "*")
def votes(case: Case):
    meta = case.meta
    is_stored = np.isin(np.arange(len(case["store_labels"])), case["stored_rows"])
    assert is_stored.sum() == meta["capacity"]
    outputs = vote_of_nearest(
        jnp.asarray(case["test_features"]),
        jnp.asarray(case["store_features"]),
        jnp.asarray(case["store_labels"]),
        jnp.asarray(is_stored),
        case["model_outputs"].shape[1],
        meta["k"],
        meta["scale"],
    )
    yield case.compare("knn_outputs", outputs)
    lam = case["weights"][:, None, None]
    mixed = np.asarray(lam * outputs + (1 - lam) * case["model_outputs"])
    yield case.compare("mixed", mixed)
    yield case.compare("accuracy", np.mean(np.argmax(mixed, axis=-1) == case["test_labels"], axis=1))
