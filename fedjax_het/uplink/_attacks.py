"""Attacks: stages in which some clients replace their update by a malicious one.

Put attacks after the clients' clipping and compression, which constrain honest clients only, and before the defenses of
the server (bounds, robust rules). mu and s are the mean and the standard deviation of each coordinate over the honest
clients that are present. With attackers, use weighting="uniform", because clients report their own number of examples.
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


# ---- attacks by own updates -----------------------------------------------------------------------------------------
@validate_arguments
def attack_sign_flip(
    factor: Positive = 1.0, *, collections: Collections = "all", **attackers: Unpack[Attackers]
) -> Stage:
    """Attackers send their own update with the sign flipped, -factor u_i.

    Args:
        factor: The scale of the malicious update (default 1).
        collections: The collections under attack, "all" or "params".
        attackers: Which clients attack, see `fedjax_het.attackers.Attackers`.

    Raises:
        InputError: Neither a fraction nor ids are given, or both are.
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
    """Attackers replace their update by Gaussian noise, N(mean, deviation^2) in each coordinate (as in ByzFL).

    Args:
        deviation, mean: The standard deviation and mean of the noise (default 1 and 0).
        collections, attackers: See `attack_sign_flip`.

    Raises:
        InputError: See `attack_sign_flip`.
    """
    return _own_lie(lambda update, key: draw_normal(update, key, mean, deviation), collections, attackers)


def draw_normal(like: PyTree, key: Key, mean: float = 0.0, deviation: float = 1.0) -> PyTree:
    """A tree of normal numbers with the shapes of another tree."""
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
    is_lying = partial(is_attacker, options=attackers)
    return Stage(collections=collections, attackers=is_lying, named_clients=named, **slots)


# ---- attacks with knowledge of all updates ---------------------------------------------------------------------------
@validate_arguments
def attack_inner_product(
    factor: Positive = 2.0, *, collections: Collections = "all", **attackers: Unpack[Attackers]
) -> Stage:
    """All attackers send -tau mu, to make the inner product of the mean with the honest mean negative (IPM).

    Args:
        factor: tau (default 2, as in ByzFL; bucketing paper: 0.1). 1: flip the sign of the mean.
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
    """All attackers send mu - z s, which hides within the spread of the honest updates (ALIE).

    Args:
        z: Default 1.5, as in the authors' code. "largest": the quantile at which attackers expect to stay hidden
            (`largest_z`); too few attackers (less than three) raise an error, or a warning if some rounds have enough.
        sign: "minus", or "plus" for mu + z s (ByzFL).
        deviation: The denominator of s: m, "population" (authors), or m - 1, "sample" (ByzFL and others).
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
            text = f"z: 'largest' has no effect with {usual} attackers among {cohort_size} clients: 0 or negative."
            if lengths.max() <= 0:
                raise InputError(f"{text} Give a number such as z=1.5.")
            warnings.warn(text, stacklevel=2)
        return ()

    return replace(_common_lie(lie, collections, attackers), init_server=init_server)


def mean_of(stack: PyTree, is_honest: Array) -> PyTree:
    """The mean of selected rows of a stack, leaves [cohort, ...] -> [...]; 0 if none is selected."""
    return tree.weighted_sum(stack, is_honest / jnp.maximum(jnp.sum(is_honest), 1))


def deviation_of(stack: PyTree, is_honest: Array, num_lost: int = 0) -> PyTree:
    """The standard deviation of each coordinate over selected rows of a stack, with denominator n - num_lost."""

    def deviation(leaf: Array, mean: Array) -> Array:
        squared = jnp.where(tree.add_axes(is_honest, leaf.ndim), jnp.square(leaf - mean), 0)
        return jnp.sqrt(jnp.sum(squared, axis=0) / jnp.maximum(jnp.sum(is_honest) - num_lost, 1))

    return jax.tree.map(deviation, stack, mean_of(stack, is_honest))


def largest_z(num_clients: Array | int, num_attackers: Array | int) -> Array:
    """ALIE's z_max = Phi^-1((n - f - s)/(n - f)), s = floor(n/2 + 1) - f; 0 if that is infinite (n <= 2)."""
    num_honest = jnp.maximum(num_clients - num_attackers, 1)
    share = (num_honest - (num_clients // 2 + 1 - num_attackers)) / num_honest
    return jnp.where((share > 0) & (share < 1), jax.scipy.special.ndtri(jnp.clip(share, 1e-6, 1 - 1e-6)), 0)


def _common_lie(
    lie: Callable[[Variables, Array, Array], Variables], collections: Collections, attackers: Attackers
) -> Stage:
    """A stage in which all attackers send the same update: (updates [cohort, ...], is_honest, is_lying) -> update."""

    def corrupt(stack: Variables, view: CorruptView) -> Variables:
        is_honest, is_lying = _parties(view, attackers)
        forged = tree.broadcast(lie(stack, is_honest, is_lying), len(view.cohort))
        return tree.where(is_lying, forged, stack)

    return _attack(attackers, collections, corrupt=corrupt)


def _parties(view: CorruptView, attackers: Attackers) -> tuple[Array, Array]:
    """Return (is present and honest, is present and attacks) for the cohort."""
    is_lying = is_attacker(view.cohort, view.num_clients, attackers)
    return view.is_present & ~is_lying, view.is_present & is_lying


# ---- mimicry ---------------------------------------------------------------------------------------------------------
class Direction(NamedTuple):
    """The state that attackers learned from the honest updates so far."""

    num_rounds: Int[Array, ""]
    mean: Variables  # mu
    axis: Variables  # z, the direction of largest variation of honest updates
    target: Int[Array, ""]  # the id of the mimicked client


def learn_direction(known: Direction, stack: Variables, is_honest: Array) -> Direction:
    """Update the direction with one round.

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
    known: Direction, stack: Variables, cohort: Array, is_honest: Array, num_warmup: int, *, is_min: bool = False
) -> tuple[Direction, Array]:
    """Return (the direction after the round, the cohort index of the mimicked client).

    During warm-up this is the honest client with the largest (or smallest) <u_i, z>; afterwards the last client chosen
    so. If that client is absent in a round, the client is chosen as during warm-up.
    """
    is_warm = known.num_rounds >= num_warmup
    learnt = learn_direction(known, stack, is_honest)
    known = tree.where(is_warm | ~jnp.any(is_honest), known, learnt)
    scores = _products(stack, known.axis) * (-1 if is_min else 1)
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
    """Attackers copy the update of one honest client to increase its weight.

    They learn the direction z of largest variation of the honest updates, and mimic the client furthest along it; after
    `num_warmup` rounds that client is fixed. The attack targets heterogeneous data: every update sent is honest.

    Args:
        num_warmup: Number of rounds in which z is learned (default 1).
        choice: Whether the client with the "largest" or the "least" <u_i, z> is mimicked.
        axis_seed: Seed of the normal vector that initializes z.
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
        return mimic(known, stack, view.cohort, _parties(view, attackers)[0], num_warmup, is_min=choice == "least")

    def init_server(shared: Variables, num_clients: int, cohort_size: int) -> Direction:
        zeros = tree.zeros_like(treated(shared))
        return Direction(jnp.array(0), zeros, draw_normal(zeros, make_key(axis_seed)), jnp.array(0))

    def corrupt(stack: Variables, view: CorruptView) -> Variables:
        _, place = step(view.state, stack, view)
        is_honest, is_lying = _parties(view, attackers)
        forged = tree.broadcast(tree.take(stack, place), len(view.cohort))
        return tree.where(is_lying & jnp.any(is_honest), forged, stack)

    def receive(update: Variables, view: ReceiveView) -> tuple[Variables, Direction]:
        server = view.server  # rows of honest clients are unchanged
        known = CorruptView(server.received, server.cohort, server.is_present, view.num_clients, view.state, view.key)
        return update, step(view.state, treated(server.updates.tensors()), known)[0]

    return _attack(attackers, collections, init_server=init_server, corrupt=corrupt, receive=receive)
