"""Rules that see the latest models of other clients, which the server keeps: published["models"]."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import LocalUpdate, Measure, Problem, StartRule
from fedjax_het.client.local_updates import wrap_training
from fedjax_het.client.measures import Examples, loss_of
from fedjax_het.types import Array, ClientView, Key, Params, PyTree, Trained, Variables
from fedjax_het.validation import Count, Fraction, NonNegative, Positive, validate_arguments

PeerWeights = Callable[[Params, Params, Array], Array]
"""(own parameters, those of all clients [clients, ...], which of these are other clients) -> weights [clients].

The weights are those of the other clients; the own model has the rest of 1.
"""
Choice = Callable[[ClientView, Key], tuple[Array, Array]]
"""(view, key) -> (the ids of the clients whose models the client is offered, whether there is such a client)."""
_CHOOSING = 1 << 18  # does not collide with the small numbers that split a client's key


def own_peer_model(problem: Problem, view: ClientView, key: Key) -> Variables:
    """The client's own latest model, with its personal leaves; before its first round, the initial model."""
    del problem, key
    return tree.merge(view.start, tree.take(view.received.published["models"].models, jnp.asarray(view.client)))


# ---- mixtures of all models ------------------------------------------------------------------------------------------
@validate_arguments
def gaussian_weights(alpha: Positive = 1.0, sigma: Positive = 1.0, *, is_capped: bool = True) -> PeerWeights:
    """Weights that fall with the distance between models (FedAMP).

        xi_ij = alpha/sigma exp(-|v_i - v_j|^2 / sigma) for j != i,   xi_ii = 1 - sum_j xi_ij

    Args:
        alpha: The paper's α.
        sigma: The paper's σ, of the order of squared distances.
        is_capped: Whether the weights of the others are divided by their sum where it exceeds 1, since xi_ii would be
            negative.
    """

    def weigh(own: Params, models: Params, is_other: Array) -> Array:
        squares = (
            jnp.sum(jnp.square(stack - leaf).reshape(len(stack), -1), axis=1)
            for leaf, stack in zip(jax.tree.leaves(own), jax.tree.leaves(models), strict=True)
        )
        closeness = alpha / sigma * jnp.exp(-sum(squares) / sigma)
        others = jnp.where(is_other, closeness, 0)
        return others / jnp.maximum(jnp.sum(others), 1) if is_capped else others

    return weigh


@validate_arguments
def cosine_weights(self_weight: Fraction = 0.5, sigma: NonNegative = 25.0) -> PeerWeights:
    """A constant weight of the own model, and others that rise with the cosine to it (HeurFedAMP).

        xi_ii = s,   xi_ij = (1 - s) softmax_{j != i}(sigma cos(v_i, v_j));   cosines of 0 are 0

    Args:
        self_weight: s.
        sigma: The paper's σ.
    """

    def weigh(own: Params, models: Params, is_other: Array) -> Array:
        pairs = list(zip(jax.tree.leaves(own), jax.tree.leaves(models), strict=True))
        rows = [(leaf.ravel(), stack.reshape(len(stack), -1)) for leaf, stack in pairs]
        precise = jax.lax.Precision.HIGHEST
        products = sum(jnp.matmul(stack, leaf, precision=precise) for leaf, stack in rows)
        squares = sum(jnp.sum(jnp.square(stack), axis=1) for _, stack in rows)
        lengths = jnp.sqrt(squares * tree.squared_norm(own))
        cosines = jnp.where(lengths > 0, products / tree.positive_or_one(lengths), 0)
        never = jnp.finfo(cosines.dtype).min / 2
        shares = jax.nn.softmax(jnp.where(is_other, sigma * cosines, never))
        return jnp.where(is_other, (1 - self_weight) * shares, 0)

    return weigh


def peer_mixture(weigh: PeerWeights) -> StartRule:
    """Start from u_i = sum_j xi_ij v_j, over the own model and the latest ones of all clients that have sent any.

    Reads: published["models"] (`latest_models` of `server.client_models`).

    Args:
        weigh: The weights xi_i, from the parameters.
    """

    def start(problem: Problem, view: ClientView, key: Key) -> Variables:
        models, client = view.received.published["models"].models, jnp.asarray(view.client)
        own = tree.take(models, client)
        is_other = view.received.published["models"].is_known & (jnp.arange(len(jax.tree.leaves(models)[0])) != client)
        others = weigh(own["params"], models["params"], is_other)
        weights = others.at[client].set(1 - jnp.sum(others))
        return tree.merge(view.start, tree.weighted_sum(models, weights))

    return start


def from_own_model(local_update: LocalUpdate) -> LocalUpdate:
    """Train from the client's own latest model; the start of the round is still the point of regularizers."""

    def train(rule: Callable[..., Trained], problem: Problem, view: ClientView, key: Key) -> Trained:
        return rule(problem, view._replace(local=own_peer_model(problem, view, key)), key)

    return wrap_training(local_update, train)


# ---- models that lower the loss --------------------------------------------------------------------------------------
@validate_arguments
def chosen_by_affinity(num_models: Count, epsilon: Fraction = 0.3, decay: NonNegative = 0.05) -> Choice:
    """The models of `num_models` other clients with the largest affinity, or random ones.

    They are random with the probability max(epsilon - decay r, 0) in round r, and ties are broken at random. Clients
    that have sent no model yet are not offered.
    Reads: published["models"], published["affinity"].
    """

    def choose(view: ClientView, key: Key) -> tuple[Array, Array]:
        published, client = view.received.published, jnp.asarray(view.client)
        affinity, is_known = published["affinity"][client], published["models"].is_known
        clients = jnp.arange(len(affinity))
        exploring, ties = jax.random.split(jax.random.fold_in(key, _CHOOSING))
        is_exploring = jax.random.uniform(exploring) < epsilon - decay * view.received.round
        is_candidate = is_known & (clients != client)
        scores = jnp.where(is_candidate, jnp.where(is_exploring, 0, affinity), -jnp.inf)
        order = jnp.lexsort((jax.random.uniform(ties, scores.shape), -scores))[:num_models]
        return order, is_candidate[order]

    return choose


Distance = Literal["euclidean", "l1", "squared"]


@validate_arguments
def lower_losses(
    local_update: LocalUpdate, choose: Choice, examples: Examples = "valid_or_train", distance: Distance = "euclidean"
) -> LocalUpdate:
    """Train from the client's own model, moved towards those of other clients that have a lower loss (FedFomo).

        a_j = (L(v_i) - L(v_j)) / |v_j - v_i|,   start = v_i + sum_j a_j^+ (v_j - v_i) / sum_j a_j^+

    L is the loss on examples of client i. Without a positive a_j the start is v_i. The result "gains" is [clients], a_j
    of the clients whose models were offered, and 0 for all others.
    Reads: published["models"].

    Args:
        local_update: Local update.
        choose: The clients whose models are offered.
        examples: Those of L.
        distance: "euclidean", "l1", or "squared", the square of the Euclidean distance.

    References:
        Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021. arXiv:2012.08565;
        code NVlabs/FedFomo.
    """

    def train(rule: Callable[..., Trained], problem: Problem, view: ClientView, key: Key) -> Trained:
        models = view.received.published["models"].models
        ids, is_offered = choose(view, key)
        own, others = own_peer_model(problem, view, key), tree.take(models, ids)
        loss = loss_of(problem, view, examples, local_update.batch_size)
        losses = jax.vmap(lambda model: loss(tree.merge(own, model)))(others)
        gains = first_order_gains(loss(own), losses, own, others, distance)
        gains = jnp.where(is_offered, gains, 0)
        start = move_to(own, others, gains)
        trained = rule(problem, view._replace(start=start, local=start), key)
        num_clients = len(view.received.published["models"].is_known)
        return trained._replace(results={**trained.results, "gains": jnp.zeros(num_clients).at[ids].add(gains)})

    return wrap_training(local_update, train)


def first_order_gains(
    own_loss: Array, losses: Array, own: PyTree, others: PyTree, distance: Distance = "euclidean"
) -> Array:
    """a_j of models, leaves [models, ...], with their losses [models]; 0 for a model equal to the own one."""
    _, mine = tree.partition_like(own, others)
    apart = [(stack - leaf).reshape(len(stack), -1) for leaf, stack in
             zip(jax.tree.leaves(mine["params"]), jax.tree.leaves(others["params"]), strict=True)]  # fmt: skip
    power = jnp.abs if distance == "l1" else jnp.square
    sums = sum(jnp.sum(power(rows), axis=1) for rows in apart)
    lengths = jnp.sqrt(sums) if distance == "euclidean" else sums
    return jnp.where(lengths > 0, (own_loss - losses) / tree.positive_or_one(lengths), 0)


def move_to(own: Variables, others: Variables, gains: Array) -> Variables:
    """v + sum_j a_j^+ (v_j - v) / sum_j a_j^+."""
    positive = jnp.maximum(gains, 0)
    weights = positive / tree.positive_or_one(jnp.sum(positive))
    _, mine = tree.partition_like(own, others)
    moves = jax.tree.map(lambda leaf, stack: stack - leaf, mine, others)
    return tree.merge(own, tree.add(mine, tree.weighted_sum(moves, weights)))


# ---- critical parameters ---------------------------------------------------------------------------------------------
@validate_arguments
def critical_entries(share: Fraction = 0.5) -> Measure:
    """The entries to which the client's loss is the most sensitive, as leaves of booleans (FedCAC).

        |(w_i - w_start) w_i| among the largest `share` of the entries of its leaf, ties included

    If the smallest of these is 0, the entries that are not 0 are taken instead, or all entries if all are 0. Of a leaf
    with less than 1 / share entries there is none.

    Args:
        share: The paper's τ.
    """

    def measure(problem: Problem, view: ClientView) -> Params:
        _, local = tree.partition_like(view.local, view.received.shared)
        _, start = tree.partition_like(view.start, view.received.shared)
        return jax.tree.map(lambda w, before: largest_entries(jnp.abs((w - before) * w), share), local["params"],
                            start["params"])  # fmt: skip

    return measure


def largest_entries(values: Array, share: float) -> Array:
    """Which of the values >= 0 are among the largest; see `critical_entries`."""
    number = jnp.floor(share * values.size).astype(jnp.int32)
    threshold = jnp.sort(values.ravel())[jnp.minimum(values.size - number, values.size - 1)]
    smallest = jnp.min(jnp.where(values > 0, values, jnp.inf))
    smallest = jnp.where(jnp.isfinite(smallest), smallest, 0)
    return (number > 0) & (values >= jnp.where(threshold > 0, threshold, smallest))


def critical_start(problem: Problem, view: ClientView, key: Key) -> Variables:
    """A start rule: the mean over collaborating clients in the critical entries, and the server's model in all others.

    Reads: published["critical"] (`critical_collaboration` of `server.client_models`).
    """
    del problem, key
    published, client = view.received.published["critical"], jnp.asarray(view.client)
    custom = tree.weighted_sum(published.clients.models["params"], published.weights[client])
    mask = tree.take(published.masks, client)
    _, received = tree.partition_like(view.start["params"], custom)
    return tree.merge(view.start, {"params": jax.tree.map(jnp.where, mask, custom, received)})


def no_report(problem: Problem, view: ClientView) -> tuple:
    """Nothing: the summary of this name reads the updates alone."""
    del problem, view
    return ()
