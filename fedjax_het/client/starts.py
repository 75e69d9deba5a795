"""Start rules of personal models: an aligned body, conditions of the features, a mean of features that begins anew."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import LocalUpdate, Measure, Problem, StartRule, Term
from fedjax_het.client.local_updates import sgd, wrap_training
from fedjax_het.client.measures import class_statistics
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.objectives._supervised import count_classes
from fedjax_het.labels import check_classes
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Array, ClientView, Key, Named, Trained, Variables
from fedjax_het.validation import Count, NonNegative, validate_arguments

Consensus = Literal["trained", "exact"]


# ---- an aligned body ------------------------------------------------------------------------------------------------
@validate_arguments
def aligned_body(learning_rate: NonNegative = 0.01, batch_size: Count = 16, *, shuffle: bool = True) -> StartRule:
    """Start from the received body after an epoch that attracts its features to those of the client's last model.

        sum_{c in batch} 1/(n_c d) sum_{b: y_b = c} |f_b - c_c|^2,   c_c: mean features of class c under the last model

    The head has no gradient. The last model of a client that has not trained yet is the initial one.
    Reads: memory["own"] (`memories.last_model`).

    Args:
        learning_rate: The rate of this epoch.
        batch_size: Examples per step.
        shuffle: Whether to shuffle them.

    References:
        Yang, Huang and Ye, FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024; code
        xiyuanyang45/FedAS.
    """
    epoch, measure = sgd(learning_rate, batch_size=batch_size, shuffle=shuffle), class_statistics(batch_size)

    def start(problem: Problem, view: ClientView, key: Key) -> Variables:
        prototypes = measure(problem, view._replace(start=view.memory["own"]["value"])).means
        aligning = problem._replace(objective=(attract_by_class(prototypes),))
        return epoch.train(aligning, view, jax.random.fold_in(key, 1)).variables

    return start


def attract_by_class(prototypes: Array) -> Term:
    """The sum over the classes of a batch of the mean squared distance of their features to [class, feature]."""

    def attract_by_class(forward: ForwardPass) -> Array:
        labels = forward.batch.labels
        check_classes(labels)
        distances = jnp.mean(jnp.square(forward.outputs.features - prototypes[labels]), axis=-1)
        member = forward.batch.mask[:, None] * jax.nn.one_hot(labels, len(prototypes), dtype=distances.dtype)
        sums = jnp.matmul(jnp.where(forward.batch.mask > 0, distances, 0), member, precision=jax.lax.Precision.HIGHEST)
        return jnp.sum(sums / jnp.maximum(jnp.sum(member, axis=0), 1))

    return attract_by_class


# ---- conditions of the features --------------------------------------------------------------------------------------
def head_context(problem: Problem, view: ClientView, key: Key) -> Variables:
    """Set the context to the sum of the personal head's weights over classes; see `models.with_gate`."""
    del problem, key
    context = jnp.sum(view.start["params"]["personal_head"]["kernel"], axis=1)
    return view.start | {"condition": {"context": context}}


def class_conditions(problem: Problem, view: ClientView, key: Key) -> Variables:
    """Set the conditions to means of the received class embeddings; see `models.with_valve`.

    generic: the mean over classes;   personal: the mean over the client's training examples
    """
    del problem, key
    classes = view.start["params"]["embedding"]["classes"]
    counts = count_classes(view.data, len(classes))
    shares = (counts / jnp.maximum(jnp.sum(counts), 1)).astype(classes.dtype)
    personal = jnp.matmul(shares, classes, precision=jax.lax.Precision.HIGHEST)
    return view.start | {"condition": {"personal": personal, "generic": jnp.mean(classes, axis=0)}}


def with_merged_head(local_update: LocalUpdate) -> LocalUpdate:
    """Train, and send the mean of the classifier and the personal head in place of the classifier."""

    def train(rule: Callable[..., Trained], problem: Problem, view: ClientView, key: Key) -> Trained:
        trained = rule(problem, view, key)
        params = trained.variables["params"]
        merged = jax.tree.map(lambda a, b: (a + b) / 2, params["classifier"], params["personal_head"])
        return trained._replace(variables=trained.variables | {"params": params | {"classifier": merged}})

    return wrap_training(local_update, train)


# ---- a mean of features that begins anew -----------------------------------------------------------------------------
def restart_mean(problem: Problem, view: ClientView, key: Key) -> Variables:
    """A start rule: the running mean of the features begins at 0 in each round."""
    del problem, key
    return view.start | {"running": tree.zeros_like(view.start["running"])}


def first_mean(local_update: LocalUpdate, consensus: Consensus = "trained", *, is_repeated: bool = True) -> Measure:
    """The mean of a client's features, which it answers once.

        {"total": n mean [feature], "weight": n},   both 0 if the client has trained before

    Reads: memory["counted"] (`memories.has_trained`), if clients are asked repeatedly.

    Args:
        local_update: A training from the received model with cross-entropy alone, whose weights are discarded.
        consensus: "trained": the running mean after that training, or "exact": the mean over all training examples with
            the received model.
        is_repeated: Whether clients are asked in each round; False with `Algorithm.survey_first`.
    """

    def measure(problem: Problem, view: ClientView) -> Named:
        rows = view.data.train
        count = jnp.where(view.memory["counted"], 0, rows.count) if is_repeated else jnp.asarray(rows.count)
        view = view._replace(data=view.data._replace(train=rows._replace(count=count)))
        if consensus == "exact":
            classes = class_statistics(local_update.batch_size)(problem, view)
            total: Array = jnp.matmul(classes.counts, classes.means, precision=jax.lax.Precision.HIGHEST)
        else:
            begin = restart_mean(problem, view, make_key(0))
            plain = problem._replace(objective=(cross_entropy(),))
            trained = local_update.train(plain, view._replace(start=begin, local=begin), make_key(0))
            total = count * trained.variables["running"]["mean"]
        return {"total": total, "weight": count.astype(total.dtype)}

    return measure
