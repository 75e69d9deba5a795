"""A start between the received model and the client's own one, with a learned weight for each entry (FedALA)."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool

from fedjax_het import tree
from fedjax_het.algorithm import LocalUpdate, Memory, Personalization, Problem
from fedjax_het.client.local_updates import wrap_training
from fedjax_het.client.memories import result
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, Batch, ClientView, Key, Rows, Trained, Variables
from fedjax_het.validation import Count, Fraction, NonNegative, validate_arguments

_CHOOSING = 1 << 18  # does not collide with the small numbers that split a client's key


class Mixture(NamedTuple):
    """What a client keeps between rounds.

    Args:
        weights: The weight of the received entry, in [0, 1], of every chosen leaf.
        has_run: Whether the weights have been learned before.
    """

    weights: Variables
    has_run: Bool[Array, "*clients"]


MixtureRule = Callable[[Problem, ClientView, Key], tuple[Variables, Mixture]]
"""The client's view before training -> (its start, what it keeps)."""


def draw_first(view: ClientView, key: Key, limit: Array) -> Array:
    """[]: a random number from 0 to limit."""
    return jax.random.randint(key, (), 0, limit + 1)


@validate_arguments
def learned_mixture(
    chosen: Sequence[str],
    rate: NonNegative = 1.0,
    share: Fraction = 0.8,
    batch_size: Count = 50,
    threshold: NonNegative = 0.1,
    window: Count = 10,
    max_passes: Count = 100,
    draw: Callable[[ClientView, Key, Array], Array] = draw_first,
) -> MixtureRule:
    """Learn the weights of the mixture on a random consecutive piece of the client's training examples.

        start = v + (w - v) a;   for each batch:  a <- clip(a - rate g(start) (w - v), 0, 1)

    w are the received chosen leaves, v those of the client's last model, a weights for every entry. The client makes
    one pass over the piece; where no weights have been learned before, it repeats passes until the losses of the last
    batches of the last `window` passes have a standard deviation below the threshold. The weights stay as they are if w
    = v, or if the piece has no example. Other leaves are those received.
    Reads: memory["own"] (`memories.last_model`), memory["mixture"] (`kept_mixture`).

    Args:
        chosen: Patterns of the leaves of params.
        rate: The paper's η.
        share: The share of the examples in the piece, the paper's s.
        batch_size: Examples per step; the last batch may be partial.
        threshold: As above.
        window: As above.
        max_passes: The maximum number of passes.
        draw: (view, key, largest first position) -> the position of the piece's first example.

    References:
        Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023.
        arXiv:2212.01197; code TsingZ0/FedALA.
    """

    def mix(problem: Problem, view: ClientView, key: Key) -> tuple[Variables, Mixture]:
        kept = view.memory["mixture"]
        rest, received = _partition(view.start, chosen)
        _, own = _partition(view.memory["own"]["value"], chosen)
        difference = tree.subtract(received, own)
        rows = view.data.train
        size = jnp.floor(share * rows.count + 1e-4).astype(jnp.int32)
        first = draw(view, jax.random.fold_in(key, _CHOOSING), jnp.asarray(rows.count - size))
        piece = Rows(jnp.roll(rows.index, -first), size)

        def start_at(weights: Variables) -> Variables:
            return tree.merge(rest, jax.tree.map(lambda v, d, a: v + d * a, own, difference, weights))

        def run_pass(weights: Variables, key: Key) -> tuple[Variables, Array]:
            def step(carry: tuple[Variables, Array], batch: Batch, number: Array) -> tuple[Variables, Array]:
                params, state = tree.split_params(start_at(carry[0]))
                (loss, _), gradient = problem.value_and_grad(
                    params, state, batch, view, jax.random.fold_in(key, number)
                )
                slopes = _partition({"params": gradient}, chosen)[1]
                move = lambda a, g, d: jnp.clip(a - rate * g * d, 0, 1)  # noqa: E731
                return jax.tree.map(move, carry[0], slopes, difference), jnp.asarray(loss, float)

            return problem.fold(view.data, piece, batch_size, step, (weights, jnp.zeros((), float)))

        is_apart = jnp.any(jnp.array([jnp.any(leaf != 0) for leaf in jax.tree.leaves(difference)]))
        is_on = is_apart & (size > 0)
        limit = jnp.where(is_on, jnp.where(kept.has_run, 1, max_passes), 0)

        def is_going(carry: tuple[Variables, Array, Array]) -> Array:
            _, losses, count = carry
            return (count < limit) & ~((count > window) & (jnp.std(losses) < threshold))

        def learn(carry: tuple[Variables, Array, Array]) -> tuple[Variables, Array, Array]:
            weights, losses, count = carry
            weights, loss = run_pass(weights, jax.random.fold_in(key, _CHOOSING + 1 + count))
            return weights, losses.at[count % window].set(loss), count + 1

        begin = kept.weights, jnp.zeros(window, float), jnp.zeros((), jnp.int32)
        weights, _, _ = jax.lax.while_loop(is_going, learn, begin)
        return start_at(weights), Mixture(weights, kept.has_run | is_on)

    return mix


def from_mixture(local_update: LocalUpdate, mix: MixtureRule) -> LocalUpdate:
    """Train from the start of a mixture rule; the result "mixture" is what it keeps."""

    def train(rule: Callable[..., Trained], problem: Problem, view: ClientView, key: Key) -> Trained:
        start, kept = mix(problem, view, key)
        trained = rule(problem, view._replace(local=start), key)
        return trained._replace(results={**trained.results, "mixture": kept})

    return wrap_training(local_update, train)


def kept_mixture(chosen: Sequence[str]) -> Memory:
    """The weights of `learned_mixture`, at first 1: the start is the received model.

    Raises:
        InputError: When initialized, no parameter matches a pattern.
    """

    def init(variables: Variables) -> Mixture:
        weights = _partition(variables, chosen)[1]
        if not weights:
            paths = tree.paths(variables)
            raise InputError(f"chosen: no parameter matches {', '.join(chosen)}. {nearest(chosen[0], paths)}")
        return Mixture(jax.tree.map(jnp.ones_like, weights), jnp.zeros((), bool))

    return result("mixture", init)


def mixed_start(mix: MixtureRule) -> Personalization:
    """The start that the rule would give the client now."""
    return lambda problem, view, key: mix(problem, view, key)[0]


def _partition(variables: Variables, chosen: Sequence[str]) -> tuple[Variables, Variables]:
    """(the other leaves, the chosen parameters)."""
    is_chosen = lambda path: tree.is_parameter(path) and any(fnmatchcase(path, p) for p in chosen)  # noqa: E731
    return tree.partition(variables, is_chosen)
