"""Local updates that are made of two others."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithm import LocalUpdate, Problem
from fedjax_het.types import Array, ClientView, Key, Trained

_OWN = 1 << 17  # does not collide with the small numbers that split a client's key


def sequential(first: LocalUpdate, second: LocalUpdate) -> LocalUpdate:
    """Train with two local updates in sequence: the second starts from the variables returned by the first.

        sequential(sgd(0.1, only="params/classifier/*"), sgd(0.01, only="!params/classifier/*"))    FedPAC: head, body

    Each update has its own optimizer; the state of the second is stored. view.start remains the model at the start of
    the round. Steps are summed; the loss of the round, and the drift if both measure it, are averaged with the steps
    as weights.

    Args:
        first: The first local update.
        second: The second local update.
    """

    def train(rules: Sequence[Callable], problem: Problem, view: ClientView, key: Key) -> Trained:
        first_key, second_key = jax.random.split(key)
        middle = rules[0](problem, view, first_key)
        second_view = view._replace(local=middle.variables, max_steps=_count_steps_left(view, middle))
        end = rules[1](problem, second_view, second_key)
        num_steps = middle.num_steps + end.num_steps
        share = middle.num_steps / jnp.maximum(num_steps, 1)
        means = {
            name: share * middle.metrics[name] + (1 - share) * end.metrics[name]
            for name in ("loss", "drift")
            if name in middle.metrics
        }
        results = {**middle.results, **end.results}
        return end._replace(num_steps=num_steps, metrics={**end.metrics, **means}, results=results)

    return _combine(train, np.add, first, second)


def alternating(even: LocalUpdate, odd: LocalUpdate) -> LocalUpdate:
    """Train with one local update in the rounds 0, 2, 4, ..., and with another in the rounds 1, 3, 5, ...

        alternating(sgd(0.1, only="!*/lora_a"), sgd(0.1, only="!*/lora_b"))    RoLoRA

    Both must give results of the same shapes. The state of the optimizer is not kept.

    Args:
        even: Local update of the rounds 0, 2, 4, ...
        odd: Local update of the rounds 1, 3, 5, ...
    """

    def train(rules: Sequence[Callable], problem: Problem, view: ClientView, key: Key) -> Trained:
        branches = [lambda rule=rule: rule(problem, view, key)._replace(optimizer=()) for rule in rules]
        return jax.lax.cond(view.received.round % 2 == 0, *branches)

    return _combine(train, np.maximum, even, odd)


def delayed(local_update: LocalUpdate, rounds: int = 1) -> LocalUpdate:
    """Take no step in the first rounds of a run, and train from then on.

    Args:
        local_update: A local update that reads view.max_steps, as `sgd` does.
        rounds: The number of rounds without a step.
    """

    def train(rule: Callable, problem: Problem, view: ClientView, key: Key) -> Trained:
        limit = jnp.iinfo(jnp.int32).max if view.max_steps is None else view.max_steps
        return rule(problem, view._replace(max_steps=jnp.where(view.received.round < rounds, 0, limit)), key)

    return wrap_training(local_update, train)


def wrap_training(local_update: LocalUpdate, train: Callable[..., Trained]) -> LocalUpdate:
    """A local update whose training is `train` of (its own training, problem, view, key)."""
    with_drift = local_update.train_with_drift
    return local_update._replace(
        train=partial(train, local_update.train), train_with_drift=with_drift and partial(train, with_drift)
    )


def with_own_model(common: LocalUpdate, own: LocalUpdate) -> LocalUpdate:
    """Train the received model with one local update, and then the client's personal model with another.

    The result of the first is sent to the server, and provides the round's metrics and optimizer. The second starts
    from memory["own"], all variables of a model (see `memories.result`), and its result is results["own"]. Steps are
    summed. Each update has its own random keys, and view.start is not changed, so neither affects the other.

    Args:
        common: Local update of the received model.
        own: Local update of the client's personal model.
    """

    def train(rules: Sequence[Callable], problem: Problem, view: ClientView, key: Key) -> Trained:
        trained = rules[0](problem, view, key)
        own_view = view._replace(local=view.memory["own"], max_steps=_count_steps_left(view, trained))
        own_model = rules[1](problem, own_view, jax.random.fold_in(key, _OWN))
        results = {**trained.results, "own": own_model.variables}
        return trained._replace(num_steps=trained.num_steps + own_model.num_steps, results=results)

    return _combine(train, np.add, common, own._replace(train_with_drift=own.train))


def _combine(train: Callable, count: Callable, first: LocalUpdate, second: LocalUpdate) -> LocalUpdate:
    """A local update that trains with two others.

    Args:
        train: (the two functions, problem, view, key) -> the result.
        count: The number of steps from those of both.
        first: The first local update.
        second: The second local update.
    """
    combined = LocalUpdate(
        partial(train, (first.train, second.train)),
        lambda num_examples: count(first.num_steps(num_examples), second.num_steps(num_examples)),
        min(first.batch_size, second.batch_size),
        max_batch_size=max(part.max_batch_size or part.batch_size for part in (first, second)),
    )
    rules = first.train_with_drift, second.train_with_drift
    return combined if None in rules else combined._replace(train_with_drift=partial(train, rules))


def _count_steps_left(view: ClientView, done: Trained) -> Array | None:
    """The number of steps that remain for a client after the first part of its round; None: no limit."""
    return None if view.max_steps is None else view.max_steps - done.num_steps.astype(jnp.int32)
