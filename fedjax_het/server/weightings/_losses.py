"""Weights that follow the losses that clients report: tilted, as TERM's release has them, and agnostic (AFL)."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedjax_het import tree
from fedjax_het.algorithm import Weighting
from fedjax_het.server.simplex import project_on_simplex
from fedjax_het.server.weightings._shares import WeightingOrName, normalise, resolve_weighting
from fedjax_het.types import Array, ServerView, Variables
from fedjax_het.validation import Finite, NonNegative, validate_arguments

SMALLEST_LOSS = 1e-10  # added to losses where they are divisors or bases of powers, as in q-FFL's code
Tilt = Literal["exponential", "power"]
EXPONENTS: dict[Tilt, Callable[[Array], Array]] = {
    "exponential": lambda losses: losses,
    "power": lambda losses: jnp.log(jnp.maximum(losses, 0) + SMALLEST_LOSS),
}


@validate_arguments
def tilted(t: Finite = 1.0, weighting: WeightingOrName = "uniform", kind: Tilt = "exponential") -> Weighting:
    """Weights that grow with the clients' losses.

        exponential:   q_i = p_i exp(t F_i) / sum_j p_j exp(t F_j)          power:   q_i = p_i F_i^t / sum_j p_j F_j^t

    Both are computed without overflow. In a power, 1e-10 is added to F.
    Reads: reports["loss"] (F_i).

    Args:
        t: 0 gives p_i; negative numbers favor small losses.
        weighting: The weights p_i, as in `aggregators.mean`.
        kind: "exponential" (TERM) or "power" (q-FFL), as above.

    Raises:
        InputError: An option is unknown, or, when traced, clients do not report their loss.

    References:
        Li et al., Tilted Empirical Risk Minimization, ICLR 2021. arXiv:2007.01162
    """
    weighting = resolve_weighting(weighting)

    def update(state: Array, view: ServerView) -> tuple[Array, Array]:
        shares, state = weighting.update(state, view)
        exponents = jnp.where(shares > 0, t * EXPONENTS[kind](view.uploads.reports["loss"]), -jnp.inf)
        largest = jnp.max(exponents)
        factors = jnp.exp(exponents - jnp.where(jnp.isfinite(largest), largest, 0))
        return normalise(shares * factors, view.is_present), state

    return Weighting(weighting.init, update, reads=weighting.reads)


@validate_arguments
def released_tilt(t: Finite = 0.1) -> Weighting:
    """The weights of TERM's released code, whose sum is about 1/m instead of one.

        e_i = exp(t (F_i - max_j F_j)),   z <- z/2 + mean_j e_j / 2, from 0,   q_i = e_i / (m^2 z),   m clients present

    z mixes exponentials relative to different maxima, and the first sum is 2/m. With t < 0, exponentials of losses far
    apart overflow.
    Reads: reports["loss"] (F_i). State: z.

    Args:
        t: As in `tilted`.

    References:
        Li et al., TERM, ICLR 2021; code litian96/TERM, fair_flearn/flearn/trainers/tilting.py.
    """

    def update(estimate: Array, view: ServerView) -> tuple[Array, Array]:
        losses, num = view.uploads.reports["loss"], jnp.sum(view.is_present)
        largest = jnp.max(losses, where=view.is_present, initial=-jnp.inf)
        factors = jnp.where(view.is_present, jnp.exp(t * jnp.where(view.is_present, losses - largest, 0)), 0)
        estimate = (estimate + jnp.sum(factors) / jnp.maximum(num, 1)) / 2
        return factors / tree.positive_or_one(num**2 * estimate), estimate.astype(float)

    return Weighting(lambda shared, num_clients: jnp.zeros((), float), update)


class Adversary(NamedTuple):
    """The state of `agnostic`."""

    weights: Float[Array, "clients"]  # lambda_i of the clients that have reported; 1/N for all others
    losses: Float[Array, "clients"]  # the client's last reported loss
    has_reported: Bool[Array, "clients"]


LambdaOrder = Literal["after", "before"]
LambdaStart = Literal["uniform", "samples"]


@validate_arguments
def agnostic(step: NonNegative = 0.1, *, order: LambdaOrder = "after", start: LambdaStart = "uniform") -> Weighting:
    """The worst mixture of clients, by gradient ascent on the simplex (agnostic federated learning).

        lambda <- argmin_{l in simplex} ||l - (lambda + step F)||

    Shapes: [cohort] from lambda [clients]. Reads: reports["loss"] (F_i, at the received model).
    Partial participation: absent clients keep their last reported loss. A client that has never reported keeps the
    weight 1/N of N clients, and the others share the rest. The weights used are lambda over the present clients,
    divided by their sum; if it is 0, all weights are 0, and the model stays.

    Args:
        step: Step size of lambda. 0 keeps it.
        order: Whether lambda moves "after" the average of the round, or "before" it.
        start: lambda of clients that report for the first time: "uniform" (1/N), or in proportion to their numbers of
            examples ("samples").

    Raises:
        InputError: An option is unknown, or, when traced, clients do not report their loss.

    References:
        Mohri, Sivek and Suresh, Agnostic Federated Learning, ICML 2019. arXiv:1902.00146
    """

    def init(shared: Variables, num_clients: int) -> Adversary:
        zeros = jnp.zeros(num_clients, float)
        return Adversary(zeros, zeros, jnp.zeros(num_clients, bool))

    def update(state: Adversary, view: ServerView) -> tuple[Array, Adversary]:
        ids, is_present, losses = view.cohort, view.is_present, view.uploads.reports["loss"]
        before = tree.take(state, ids)
        is_new = is_present & ~before.has_reported
        counts = view.uploads.num_examples if start == "samples" else jnp.ones(len(ids))
        first = normalise(counts, is_new) * jnp.sum(is_new) / view.num_clients
        weights = jnp.where(is_new, first, before.weights).astype(float)
        now = Adversary(weights, losses.astype(float), is_present)
        known = tree.put(state, ids, tree.where(is_present, now, before))
        total = jnp.sum(known.has_reported) / view.num_clients
        moved = project_on_simplex(known.weights + step * known.losses, known.has_reported, total)
        used = moved[ids] if order == "before" else weights
        return normalise(used, is_present), known._replace(weights=moved)

    return Weighting(init, update)
