"""CCVR: pooled moments, virtual features, and the training of the head on them; third parties and the equations."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.client.measures._statistics import scatter_by_class, statistics_of
from fedjax_het.server.calibration import (
    ClassMoments,
    add_moments,
    draw_features,
    no_moments,
    symmetric_root,
    train_head,
)
from tests.golden.cases import Case, covers, known


def client_moments(case: Case) -> dict:
    """The report of each client on its stored features."""
    num_classes = case["counts"].shape[1]

    def measure(features, labels):
        mask = (labels >= 0).astype(float)
        classes = statistics_of(features, labels, mask, num_classes)
        scatter = scatter_by_class(features - classes.means[labels], labels, mask, num_classes)
        covariances = scatter / jnp.maximum(classes.counts - 1, 1)[:, None, None]
        return {"counts": classes.counts, "means": classes.means, "covariances": covariances}

    return jax.vmap(measure)(jnp.asarray(case["features"]), jnp.asarray(case["labels"]))


def pool(reports: dict, *, biased: bool = False) -> ClassMoments:
    """The pooled moments of all clients, added client by client."""
    start = no_moments(*reports["means"].shape[1:])
    return jax.lax.scan(lambda total, report: (add_moments(total, report, biased=biased), None), start, reports)[0]


@covers("ccvr", "stats_*")
def statistics(case: Case):
    reports = client_moments(case)
    yield case.compare("counts", reports["counts"])
    counts = case["counts"]
    yield case.compare("client_means", reports["means"])
    yield case.compare("client_covs", reports["covariances"])
    biased = reports["covariances"] * (np.maximum(counts - 1, 0) / np.maximum(counts, 1))[:, :, None, None]
    yield case.compare("client_covs_biased", biased)
    pooled, theirs = pool(reports), pool(reports, biased=True)
    means, is_spread = known(pooled.means, counts.sum(axis=0) > 0), counts.sum(axis=0) > 1
    yield case.compare("means", means)
    yield case.compare("covs", known(pooled.covariances, is_spread))
    yield case.compare("pooled_covs", known(pooled.covariances, is_spread))
    for code in ("fluke", "flbench"):
        yield case.compare(f"{code}_means", means)
        yield case.compare(f"{code}_covs", known(theirs.covariances, is_spread))


@covers("ccvr", "sample_*")
def sample(case: Case):
    covariances = jnp.asarray(case["cov"])
    yield case.compare("root", symmetric_root(covariances), 1e-7)  # of eigenvalues that are 0 up to rounding
    moments = ClassMoments(jnp.ones(len(covariances)), jnp.asarray(case["mean"]), covariances)
    yield case.compare("x", draw_features(moments, jnp.asarray(case["noise"])), 1e-7)


@covers("ccvr", "calibrate_*")
def calibration(case: Case):
    params = {"classifier": {"W": jnp.asarray(case["W_in"]), "b": jnp.asarray(case["b_in"])}}
    features, labels = jnp.asarray(case["Z"]), jnp.asarray(case["y"])

    def classify(params, features):
        return features @ params["classifier"]["W"].T + params["classifier"]["b"]

    trained = train_head(classify, params, features, labels, jnp.ones(labels.shape), case.meta["lr"])
    yield case.compare("W_out", trained["classifier"]["W"])
    yield case.compare("b_out", trained["classifier"]["b"])


@covers("ccvr", "fedetf_repo_*")
def another_rule(case: Case):
    """Uniform over clients, and a mixture of units as a standard deviation: not CCVR."""
    pooled = pool(client_moments(case))
    yield case.compare("counts", client_moments(case)["counts"])
    deviations = jnp.sqrt(jnp.diagonal(pooled.covariances, axis1=1, axis2=2))
    yield case.compare("exact_mean", pooled.means)
    yield case.compare("exact_std", deviations)
    yield case.refute("fedetf_repo_mean", pooled.means)
    yield case.refute("fedetf_repo_sampler_scale", deviations)
