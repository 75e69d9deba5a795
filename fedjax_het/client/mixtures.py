"""Mixtures of networks on a client: expectation and maximization (FedEM)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import LocalUpdate, Problem, Term
from fedjax_het.client.local_updates import wrap_training
from fedjax_het.labels import check_classes, cross_entropies, mean_over_labels, mean_per_example
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Array, Batch, ClientView, Key, Params, Trained


def component_losses(forward: ForwardPass) -> Array:
    """The cross-entropy of every component of a `models.mixture`, [components, batch, ...]."""
    check_classes(forward.batch.labels)

    def loss(weights: Array) -> Array:
        logits = forward.problem.model.classify(_with_weights(forward.params, weights), forward.outputs.features)
        return cross_entropies(logits, forward.batch.labels)

    return jax.vmap(loss)(jnp.eye(len(_weights(forward.params)), dtype=forward.outputs.logits.dtype))


def responsibilities(problem: Problem, view: ClientView, batch: Batch) -> Array:
    """The posterior of the components under the received model, [components, batch, ...].

        q_m = softmax_m(log pi_m - l_m(x, y))

    pi are the client's weights, in view.start; the pass is in evaluation mode.
    """
    params, state = tree.split_params(view.start)
    losses = component_losses(problem.forward(params, state, batch, view, make_key(0), is_training=False))
    weights = _weights(params)
    return jax.nn.softmax(tree.add_axes(jnp.log(weights), losses.ndim).astype(losses.dtype) - losses, axis=0)


def expected_cross_entropy() -> Term:
    """The cross-entropy of every component, weighted by its responsibility for the example.

        sum_m 1/B sum_b q_bm l_m(x_b, y_b),   q from the received model, constant in the gradient

    Cost: a second forward pass.
    Reads: view.start.

    References:
        Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021. arXiv:2108.10252;
        code omarfoq/FedEM.
    """

    def expected_cross_entropy(forward: ForwardPass) -> Array:
        weights = jax.lax.stop_gradient(responsibilities(forward.problem, forward.view, forward.batch))
        losses = jnp.sum(weights * component_losses(forward), axis=0)
        return mean_over_labels(losses, forward.batch.labels, forward.batch.mask)

    return expected_cross_entropy


def with_expected_weights(local_update: LocalUpdate) -> LocalUpdate:
    """Set the weights of the components to their mean responsibilities over the client's training examples.

        pi_m <- 1/n sum_j q_m(x_j, y_j),   q from the received model and the old weights

    Args:
        local_update: The training of the components.
    """

    def train(rule: Callable, problem: Problem, view: ClientView, key: Key) -> Trained:
        def add(total: Array, batch: Batch, number: Array) -> Array:
            chances = responsibilities(problem, view, batch)
            means = jax.vmap(lambda chance: mean_per_example(chance, batch.labels))(chances)
            return total + means @ batch.mask

        rows, old = view.data.train, _weights(view.start["params"])
        total = problem.fold(view.data, rows, local_update.batch_size, add, jnp.zeros_like(old))
        trained = rule(problem, view, key)
        params = _with_weights(trained.variables["params"], total / jnp.maximum(rows.count, 1))
        return trained._replace(variables={**trained.variables, "params": params})

    return wrap_training(local_update, train)


def _weights(params: Params) -> Array:
    """The weights of the components, [components]."""
    return params["mixture"]["weights"]


def _with_weights(params: Params, weights: Array) -> Params:
    return {**params, "mixture": {"weights": weights}}
