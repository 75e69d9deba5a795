"""Attacks: stages in which some clients send something else than what they have trained.

A lie comes last on a client: put the attack behind clipping and compression, which bind honest clients alone. What a
server does with what arrived (bounds, robust rules) comes after it. mu and s are the mean and the standard deviation of
each coordinate over the honest clients that are present. With attackers take weighting="uniform": a client's number of
examples is what it says.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Int

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import CorruptView, ReceiveView, Sent, Stage, StageView
from fedjax_het.attackers import Attackers, check_attackers, choose_attackers, is_attacker
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key, PyTree, Variables
from fedjax_het.uplink._clipping import Collections
from fedjax_het.validation import Count, Finite, NonNegative, Positive, Seed, validate_arguments


# ---- lies about one's own update -------------------------------------------------------------------------------------
@validate_arguments
def attack_sign_flip(
    factor: Positive = 1.0, *, collections: Collections = "all", **attackers: Unpack[Attackers]
) -> Stage:
    """Attackers send their own update backwards, -factor u_i.

    Args:
        factor: 1; a larger one scales the lie.
        collections: Which ones are lies, "all" or "params".
        attackers: Who attacks, see `fedjax_het.attackers.Attackers`.

    Raises:
        InputError: Neither a fraction nor ids are given, or both.
    """
    return _own_lie(lambda update, key: tree.scale(-factor, update), collections, attackers)


@validate_arguments
def attack_gaussian(
    deviation: NonNegative = 1.0,
    mean: Finite = 0.0,
    *,
    collections: Collections = "all",
    **attackers: Unpack[Attackers],
) -> Stage:
    """Attackers send normal numbers in place of their update, N(mean, deviation^2) in each coordinate (as ByzFL does).

    Args:
        deviation, mean: Of the numbers, 1 and 0.
        collections, attackers: See `attack_sign_flip`.

    Raises:
        InputError: See `attack_sign_flip`.
    """
    return _own_lie(lambda update, key: draw_normal(update, key, mean, deviation), collections, attackers)


def draw_normal(like: PyTree, key: Key, mean: float = 0.0, deviation: float = 1.0) -> PyTree:
    """A tree of normal numbers of the shapes of another."""
    leaves, structure = jax.tree.flatten(like)
    draw = lambda number, leaf: jax.random.normal(jax.random.fold_in(key, number), leaf.shape, leaf.dtype)  # noqa: E731
    return structure.unflatten([(mean + deviation * draw(i, leaf)).astype(leaf.dtype) for i, leaf in enumerate(leaves)])


def _own_lie(lie: Callable[[Variables, Key], Variables], collections: Collections, attackers: Attackers) -> Stage:
    def send(update: Variables, view: StageView) -> Sent:
        return Sent(tree.where(is_attacker(view.client, view.num_clients, attackers), lie(update, view.key), update))

    return _attack(attackers, collections, send=send)


def _attack(attackers: Attackers, collections: Collections, **slots: Any) -> Stage:
    check_attackers(attackers)
    named = (("clients", tuple(attackers["clients"])),) if "clients" in attackers else ()
    lies = partial(is_attacker, options=attackers)
    return Stage(collections=collections, attackers=lies, named_clients=named, **slots)


# ---- lies about what all others send ---------------------------------------------------------------------------------
@validate_arguments
def attack_inner_product(
    factor: Positive = 2.0, *, collections: Collections = "all", **attackers: Unpack[Attackers]
) -> Stage:
    """Attackers turn the mean's inner product with the honest one around: all send -tau mu (IPM).

    Args:
        factor: tau; ByzFL 2, the authors of bucketing .1. 1 flips the sign of the mean.
        collections, attackers: See `attack_sign_flip`.

    Raises:
        InputError: See `attack_sign_flip`.

    References:
        Xie, Koyejo and Gupta, Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation, UAI 2019.
    """

    def lie(stack: Variables, is_honest: Array, is_lying: Array) -> Variables:
        return tree.scale(-factor, mean_of(stack, is_honest))

    return _common_lie(lie, collections, attackers)


@validate_arguments
def attack_little_is_enough(
    z: Positive | Literal["largest"] = 1.5,
    sign: Literal["minus", "plus"] = "minus",
    deviation: Literal["population", "sample"] = "population",
    *,
    collections: Collections = "all",
    **attackers: Unpack[Attackers],
) -> Stage:
    """Attackers hide within the spread of the honest updates: all send mu - z s (ALIE).

    Args:
        z: 1.5, the authors', or "largest", the quantile at which they expect to stay hidden (`largest_z`). For less
            than three attackers that is no attack: refused if no round can have more, warned of if few have.
        sign: "minus" | "plus", mu + z s (ByzFL).
        deviation: s with m in the denominator, "population" (authors), or m - 1, "sample" (ByzFL and others).
        collections, attackers: See `attack_sign_flip`.

    Raises:
        InputError: See `attack_sign_flip`; or, when a round is built, the largest z is never positive.

    References:
        Baruch, Baruch and Goldberg, A Little Is Enough: Circumventing Defenses For Distributed Learning, NeurIPS 2019;
        code moranant/attacking_distributed_learning.
    """

    def lie(stack: Variables, is_honest: Array, is_lying: Array) -> Variables:
        num_lying = jnp.sum(is_lying)
        length = largest_z(jnp.sum(is_honest) + num_lying, num_lying) if isinstance(z, str) else z
        spread = deviation_of(stack, is_honest, int(deviation == "sample"))
        return tree.add(mean_of(stack, is_honest), tree.scale(length if sign == "plus" else -length, spread))

    def init_server(shared: Variables, num_clients: int, cohort_size: int) -> PyTree:
        lying = len(choose_attackers(num_clients, attackers)) if z == "largest" else 0
        with jax.ensure_compile_time_eval():
            lengths = jax.device_get(largest_z(cohort_size, jnp.arange(min(lying, cohort_size) + 1)))
        if lying and lengths[usual := round(cohort_size * lying / num_clients)] <= 0:
            text = f"z: 'largest' is no attack with {usual} attackers among {cohort_size} clients: 0 or negative."
            if lengths.max() <= 0:
                raise InputError(f"{text} Give a number such as z=1.5.")
            warnings.warn(text, stacklevel=2)
        return ()

    return replace(_common_lie(lie, collections, attackers), init_server=init_server)


def mean_of(stack: PyTree, is_honest: Array) -> PyTree:
    """The mean of some rows of a stack, leaves [cohort, ...] -> [...]; 0 without any."""
    return tree.weighted_sum(stack, is_honest / jnp.maximum(jnp.sum(is_honest), 1))


def deviation_of(stack: PyTree, is_honest: Array, num_lost: int = 0) -> PyTree:
    """The standard deviation of each coordinate over some rows of a stack, with n - num_lost in the denominator."""

    def of_leaf(leaf: Array, mean: Array) -> Array:
        squared = jnp.where(tree.add_axes(is_honest, leaf.ndim), jnp.square(leaf - mean), 0)
        return jnp.sqrt(jnp.sum(squared, axis=0) / jnp.maximum(jnp.sum(is_honest) - num_lost, 1))

    return jax.tree.map(of_leaf, stack, mean_of(stack, is_honest))


def largest_z(num_clients: Array | int, num_attackers: Array | int) -> Array:
    """ALIE's z_max = Phi^-1((n - f - s)/(n - f)), s = floor(n/2 + 1) - f; 0 where that is infinite, for n <= 2."""
    num_honest = jnp.maximum(num_clients - num_attackers, 1)
    share = (num_honest - (num_clients // 2 + 1 - num_attackers)) / num_honest
    return jnp.where((share > 0) & (share < 1), jax.scipy.special.ndtri(jnp.clip(share, 1e-6, 1 - 1e-6)), 0)


def _common_lie(
    lie: Callable[[Variables, Array, Array], Variables], collections: Collections, attackers: Attackers
) -> Stage:
    """A stage in which all attackers send the same: (updates [cohort, ...], who is honest, who lies) -> the lie."""

    def corrupt(stack: Variables, view: CorruptView) -> Variables:
        is_honest, is_lying = _parties(view, attackers)
        said = tree.broadcast(lie(stack, is_honest, is_lying), len(view.cohort))
        return tree.where(is_lying, said, stack)

    return _attack(attackers, collections, corrupt=corrupt)


def _parties(view: CorruptView, attackers: Attackers) -> tuple[Array, Array]:
    """Of the cohort, (who is present and honest, who is present and attacks)."""
    lies = is_attacker(view.cohort, view.num_clients, attackers)
    return view.is_present & ~lies, view.is_present & lies


# ---- mimicry ---------------------------------------------------------------------------------------------------------
class Direction(NamedTuple):
    """What attackers have learnt of the honest updates of the rounds so far."""

    num_rounds: Int[Array, ""]
    mean: Variables  # mu
    axis: Variables  # z, along which honest updates differ most
    target: Int[Array, ""]  # the id of the client who is mimicked


def learn_direction(known: Direction, stack: Variables, is_honest: Array) -> Direction:
    """Take one round into account.

    mu <- (t mu + mean_i u_i)/(1 + t),   c = sum_i <u_i - mu, z> (u_i - mu),   z <- t z + c/|c|, normalized
    """
    old = known.num_rounds / (1 + known.num_rounds)
    mean = tree.add(tree.scale(old, known.mean), tree.scale(1 - old, mean_of(stack, is_honest)))
    centred = jax.tree.map(lambda u, mu: jnp.where(tree.add_axes(is_honest, u.ndim), u - mu, 0), stack, mean)
    pull = tree.weighted_sum(centred, _products(centred, known.axis))
    axis = tree.add(tree.scale(old, known.axis), tree.scale((1 - old) / tree.positive_or_one(tree.norm(pull)), pull))
    axis = tree.scale(1 / tree.positive_or_one(tree.norm(axis)), axis)
    return known._replace(num_rounds=known.num_rounds + 1, mean=mean, axis=axis)


def _products(stack: Variables, other: Variables) -> Array:
    pairs = zip(jax.tree.leaves(stack), jax.tree.leaves(other), strict=True)
    return sum((jnp.sum(u * v, axis=tuple(range(1, u.ndim))) for u, v in pairs), jnp.zeros(()))


def mimic(
    known: Direction, stack: Variables, cohort: Array, is_honest: Array, num_warmup: int, *, is_least: bool = False
) -> tuple[Direction, Array]:
    """(what is known after the round, the place in the cohort of the client who is mimicked).

    While it warms up, the honest client with the largest (or the least) <u_i, z>; then the last one of these, or, in a
    round without that one, the client chosen in the same way.
    """
    is_warm = known.num_rounds >= num_warmup
    learnt = learn_direction(known, stack, is_honest)
    known = tree.where(is_warm | ~jnp.any(is_honest), known, learnt)
    scores = _products(stack, known.axis) * (-1 if is_least else 1)
    is_target = is_warm & is_honest & (cohort == known.target)
    place = jnp.where(jnp.any(is_target), jnp.argmax(is_target), jnp.argmax(jnp.where(is_honest, scores, -jnp.inf)))
    target = jnp.where(is_warm | ~jnp.any(is_honest), known.target, cohort[place])
    return known._replace(target=target.astype(known.target.dtype)), place


@validate_arguments
def attack_mimic(
    num_warmup: Count = 1,
    choice: Literal["largest", "least"] = "largest",
    *,
    axis_seed: Seed = 0,
    collections: Collections = "all",
    **attackers: Unpack[Attackers],
) -> Stage:
    """Attackers send what one honest client sends, so that it counts more than the others.

    They learn along which direction z honest updates differ most, and mimic the client furthest along it; after
    `num_warmup` rounds they stay with that one. An attack on heterogeneous data: the lie is an honest update.

    Args:
        num_warmup: Rounds in which z is learnt, 1.
        choice: Of the client by <u_i, z>, "largest" | "least".
        axis_seed: Of the normal vector that z starts from.
        collections, attackers: See `attack_sign_flip`.

    Raises:
        InputError: See `attack_sign_flip`.

    References:
        Karimireddy, He and Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022; code
        epfml/byzantine-robust-noniid-optimizer, codes/attacks/mimic.py.
    """

    def treated(shared: Variables) -> Variables:
        return shared if collections == "all" else {"params": shared["params"]}

    def step(known: Direction, stack: Variables, view: CorruptView) -> tuple[Direction, Array]:
        return mimic(known, stack, view.cohort, _parties(view, attackers)[0], num_warmup, is_least=choice == "least")

    def init_server(shared: Variables, num_clients: int, cohort_size: int) -> Direction:
        zeros = tree.zeros_like(treated(shared))
        return Direction(jnp.array(0), zeros, draw_normal(zeros, make_key(axis_seed)), jnp.array(0))

    def corrupt(stack: Variables, view: CorruptView) -> Variables:
        _, place = step(view.state, stack, view)
        is_honest, is_lying = _parties(view, attackers)
        said = tree.broadcast(tree.take(stack, place), len(view.cohort))
        return tree.where(is_lying & jnp.any(is_honest), said, stack)

    def receive(update: Variables, view: ReceiveView) -> tuple[Variables, Direction]:
        server = view.server  # the rows of honest clients are as they were
        known = CorruptView(server.received, server.cohort, server.is_present, view.num_clients, view.state, view.key)
        return update, step(view.state, treated(server.updates.tensors()), known)[0]

    return _attack(attackers, collections, init_server=init_server, corrupt=corrupt, receive=receive)
