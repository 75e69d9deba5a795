"""FedPAC: class statistics, prototypes, the program for the heads' mixtures, and alignment."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.client.measures._statistics import statistics_of, variance_and_means
from fedjax_het.client.objectives import alignment
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round import server_step
from fedjax_het.server.aggregators import collaborative_heads, mean
from fedjax_het.server.aggregators._collaboration import collaboration_weights, drop_small_weights, risk_matrices
from fedjax_het.server.summaries import class_weighted_mean
from tests.golden.cases import Case, covers, known
from tests.views import client_view, forward_pass, server_view

EXACT = 1e-8  # of the weights that solve the program
UNSOLVED = "the released repair of the matrix failed, or changed the program"


def is_single(case: Case) -> bool:
    return str(case["dtype"]) == "f32"


def tolerance(case: Case) -> float:
    """The accuracy of the authors' solver, and the precision of their code."""
    return 1e-4 if is_single(case) else 1e-6


def rounding(case: Case) -> float:
    return 1e-5 if is_single(case) else 1e-9


def was_solved(case: Case, name: str) -> bool:
    """Whether the released code solved its own program: its repair of the matrix can fail, or change the solution."""
    theirs, exact = case[name], case["head_weights_exact_threshold"]
    return theirs.shape == exact.shape and bool(np.allclose(theirs, exact, atol=10 * tolerance(case)))


@covers("fedpac", "qp_*")
def program(case: Case):
    yield from _weights(case)


def _weights(case: Case):
    """The matrices and weights of all clients from V and H."""
    variance, means = jnp.asarray(case["V"]), jnp.asarray(case["H"])
    is_present = jnp.ones(len(variance), bool)
    yield case.compare("qp_matrix", jax.jit(risk_matrices)(variance, means, is_present))
    weights = jax.jit(collaboration_weights)(variance, means, is_present)
    large = drop_small_weights(weights)
    yield case.compare("head_weights_exact", weights, EXACT)
    for name in ("head_weights_exact_threshold", "head_weights", "head_weights_fedld"):
        if name == "head_weights_exact_threshold" or was_solved(case, name):
            # The released weights are divided by their sum only where they are used.
            sums = np.sum(case[name], axis=1, keepdims=True)
            yield case.compare(name, large * sums, EXACT if "exact" in name else tolerance(case))
        else:
            exact = case["head_weights_exact_threshold"]
            exact = exact / exact.sum(axis=1, keepdims=True)
            yield case.contain(name, large, exact, UNSOLVED, "head_weights_exact_threshold", EXACT)
    case.excuse("error_*", "what the released code said, if it failed")


@covers("fedpac", "case_*")
def statistics_to_heads(case: Case):
    labels, num_classes = jnp.asarray(case["labels"]), int(case["num_classes"])
    mask = (labels >= 0).astype(float)
    classes, statistics = _measured(jnp.asarray(case["features"]), labels, mask, num_classes)
    yield case.compare("V", statistics["variance"], rounding(case))
    yield case.compare("H", statistics["means"], rounding(case))
    yield case.compare("label_counts", classes.counts, rounding(case))
    yield case.compare("local_protos", known(classes.means, classes.counts > 0), rounding(case))
    reports = {"prototypes": {"means": classes.means, "counts": classes.counts}}
    published = _published(reports["prototypes"], len(labels))
    yield case.compare("global_protos", known(published["means"], published["is_known"]), rounding(case))
    yield from _weights(case)
    yield from _mixture(case, statistics)
    yield from _alignment(case, published)


@partial(jax.jit, static_argnums=3)
def _measured(features, labels, mask, num_classes: int):
    classes = jax.vmap(lambda *x: statistics_of(*x, num_classes))(features, labels, mask)
    return classes, jax.vmap(variance_and_means)(classes)


def _published(reports: dict, num_clients: int) -> dict:
    nothing = {
        "means": jnp.zeros(reports["means"].shape[1:]),
        "is_known": jnp.zeros(reports["means"].shape[1], bool),
    }
    return class_weighted_mean().update(nothing, StackedUpdates(reports), server_view(num_clients))


def _mixture(case: Case, statistics: dict):
    view = server_view(len(case["heads"]), {"head": jnp.asarray(case["heads"]), "statistics": statistics})
    aggregate, _ = server_step.aggregate(collaborative_heads(mean()), None, (), view)
    if was_solved(case, "head_weights"):
        yield case.compare("combined_heads", aggregate.replies, tolerance(case))
        return
    exact = case["head_weights_exact_threshold"]
    expected = np.einsum("ij,j...->i...", exact / exact.sum(axis=1, keepdims=True), case["heads"])
    held_to = "the heads mixed by head_weights_exact_threshold"
    yield case.contain("combined_heads", aggregate.replies, expected, UNSOLVED, held_to, EXACT)


def _alignment(case: Case, published: dict):
    is_example = case["labels"][0] >= 0
    features, labels = jnp.asarray(case["features"][0][is_example]), jnp.asarray(case["labels"][0][is_example])
    classes = statistics_of(features, labels, jnp.ones(len(labels)), int(case["num_classes"]))
    view = client_view(published={"prototypes": published}, round=1, answers={"classes": classes})

    def loss(features):
        return alignment(1.0)(forward_pass(features, labels, view=view))

    value, gradient = jax.jit(jax.value_and_grad(loss))(features)
    yield case.compare("align_loss_client0", value, rounding(case))
    yield case.compare("align_grad_client0", gradient, rounding(case))
