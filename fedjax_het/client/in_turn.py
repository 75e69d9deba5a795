"""Local updates made of two."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_het.algorithm import LocalUpdate, Problem
from fedjax_het.types import ClientView, Key, Trained


def in_turn(first: LocalUpdate, second: LocalUpdate) -> LocalUpdate:
    """One local update after the other: the second goes on from the variables where the first ended.

        in_turn(sgd(0.1, only="params/classifier/*"), sgd(0.01, only="!params/classifier/*"))    FedPAC: head, then body

    Each starts its own optimizer; the second's is handed on. view.start stays where the round began. Steps add up; the
    round's loss, and its drift where both are watched, are weighted by them.
    """

    def train(problem: Problem, view: ClientView, key: Key, one: Callable, other: Callable) -> Trained:
        earlier, later = jax.random.split(key)
        begun = one(problem, view, earlier)
        done = other(problem, view._replace(local=begun.variables), later)
        num_steps = begun.num_steps + done.num_steps
        share = begun.num_steps / jnp.maximum(num_steps, 1)
        means = {
            name: share * begun.metrics[name] + (1 - share) * done.metrics[name]
            for name in ("loss", "drift")
            if name in begun.metrics
        }
        return done._replace(num_steps=num_steps, metrics={**done.metrics, **means})

    def count_steps(num_examples: Any) -> Any:
        return first.num_steps(num_examples) + second.num_steps(num_examples)

    trained = partial(train, one=first.train, other=second.train)
    watched = (
        partial(train, one=first.train_with_drift, other=second.train_with_drift)
        if first.train_with_drift and second.train_with_drift
        else None
    )
    return LocalUpdate(trained, count_steps, min(first.batch_size, second.batch_size), watched)
