"""Server optimizers as published: FedAvgM, FedAdagrad, FedAdam, FedYogi, FLASH, and FedACG's lookahead.

The pseudo-gradient g is minus the aggregated update, D = -g. For each coordinate

    m <- b1 m + (1 - b1) D
    v <- v + D^2 (Adagrad, b1 = 0)  |  b2 v + (1 - b2) D^2 (Adam)  |  v - (1 - b2) D^2 sign(v - D^2) (Yogi)
    w <- w + eta m / (sqrt(v) + tau)

Each is an optax.GradientTransformation and works with any algorithm: replace(fedprox(), server_optimizer=yogi()).
optax's own adam and yogi apply bias correction, which the paper does not.
All raise InputError for a concrete setting out of range or an unknown name.

Reddi et al., Adaptive Federated Optimization, ICLR 2021. arXiv:2003.00295; Hsu et al., Measuring the Effects of
Non-Identical Data Distribution for Federated Visual Classification, 2019. arXiv:1909.06335 (FedAvgM); Panchal et al.,
Flash: Concept Drift Adaptation in Federated Learning, ICML 2023.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Int

from fedjax_het import tree
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Params, PyTree, ServerState, Variables
from fedjax_het.validation import FractionBelowOne, NonNegative, Positive, validate_arguments


class Momentum(NamedTuple):
    velocity: Params  # of the pseudo-gradient


class Moments(NamedTuple):
    count: Int[Array, ""]  # steps taken
    first: Params  # m, of the pseudo-gradient (the paper's sign is the opposite)
    second: Params  # v


class DriftMoments(NamedTuple):
    first: Params  # m, of the pseudo-gradient (the paper's sign is the opposite)
    second: Params  # v
    drift: Params  # d, of the difference between the squared pseudo-gradient and v


SecondMoment = Callable[[Array, Array], Array]
"""(v, squared pseudo-gradient) -> new v."""

BiasCorrection = Literal["adam", "flower"]
InitialMoment = NonNegative | Literal["tau2"]
LATER: dict[BiasCorrection, int] = {"adam": 0, "flower": 1}  # Flower counts the first step as step 2


@validate_arguments
def sgd(
    learning_rate: NonNegative = 1.0, momentum: FractionBelowOne = 0.9, *, momentum_damping: bool = False
) -> optax.GradientTransformation:
    """Server momentum: b <- momentum b + D;  w <- w + eta b.

    Args:
        learning_rate: The paper's eta.
        momentum: The momentum of the server.
        momentum_damping: Whether b <- momentum b + (1 - momentum) D instead, so the step size does not grow (MOON's
            repository).
    """

    def update(updates: Params, state: PyTree, params: Params | None = None) -> tuple[Params, Momentum]:
        fresh = 1 - momentum if momentum_damping else 1.0
        velocity = tree.add(tree.scale(momentum, state.velocity), tree.scale(fresh, updates))
        return tree.scale(-learning_rate, velocity), Momentum(velocity)

    return optax.GradientTransformation(lambda params: Momentum(tree.zeros_like(params)), update)


class Lookahead(NamedTuple):
    step: Params  # lam m, the difference between the model sent and the server's own model


@validate_arguments
def lookahead_momentum(momentum: FractionBelowOne = 0.85) -> optax.GradientTransformation:
    """FedACG's server: m <- momentum m + D;  x <- z + D;  z <- x + momentum m.

    The server sends z; `without_lookahead` returns x. z follows Nesterov momentum with learning rate 1.

    Args:
        momentum: The paper's lambda (default .85).
    """

    def update(updates: Params, state: PyTree, params: Params | None = None) -> tuple[Params, Lookahead]:
        ahead = tree.scale(momentum, tree.subtract(state.step, updates))
        return tree.subtract(ahead, updates), Lookahead(ahead)

    return optax.GradientTransformation(lambda params: Lookahead(tree.zeros_like(params)), update)


def without_lookahead(server: ServerState) -> Variables:
    """The shared variables of a server with `lookahead_momentum`, with parameters x instead of z.

    Raises:
        InputError: The server uses another optimizer.
    """
    if not isinstance(server.optimizer, Lookahead):
        raise InputError(
            "server_optimizer: the evaluated model is the one before the lookahead of `lookahead_momentum`, which this "
            "optimizer does not have. Also set evaluated=algorithm.shared_variables."
        )
    return server.shared | {"params": tree.subtract(server.shared["params"], server.optimizer.step)}


@validate_arguments
def adagrad(
    learning_rate: NonNegative = 0.1, tau: Positive = 1e-3, v0: InitialMoment = 0.0
) -> optax.GradientTransformation:
    """FedAdagrad: v is the sum of squares, so step sizes only decrease.

    Args:
        learning_rate: The paper's eta.
        tau: See `adam`.
        v0: See `adam`.
    """
    return _adaptive(lambda v, square: v + square, learning_rate, 0.0, 0.0, tau, v0, None)


@validate_arguments
def adam(
    learning_rate: NonNegative = 0.01,
    b1: FractionBelowOne = 0.9,
    b2: FractionBelowOne = 0.99,
    tau: Positive = 1e-3,
    *,
    v0: InitialMoment = 0.0,
    bias_correction: BiasCorrection | None = None,
) -> optax.GradientTransformation:
    """FedAdam: v is a moving average of squares.

    Args:
        learning_rate: The paper's eta.
        b1: Decay of m.
        b2: Decay of v.
        tau: Degree of adaptivity, positive, 1e-5 to 1e-1.
        v0: Initial value of v (default 0, as in the paper's experiments and Flower). "tau2": tau^2, as in the paper's
            Algorithm 2.
        bias_correction: Default None, as in the paper. "adam": eta sqrt(1 - b2^t) / (1 - b1^t) from t = 1 (the authors'
            code, through Keras). "flower": the same from t = 2.
    """
    return _adaptive(lambda v, square: b2 * v + (1 - b2) * square, learning_rate, b1, b2, tau, v0, bias_correction)


@validate_arguments
def yogi(
    learning_rate: NonNegative = 0.01,
    b1: FractionBelowOne = 0.9,
    b2: FractionBelowOne = 0.99,
    tau: Positive = 1e-3,
    *,
    v0: InitialMoment = 0.0,
    bias_correction: BiasCorrection | None = None,
) -> optax.GradientTransformation:
    """FedYogi: v changes by (1 - b2) D^2 per step, so it decreases slowly. Arguments as in `adam`."""
    return _adaptive(
        lambda v, square: v - (1 - b2) * square * jnp.sign(v - square), learning_rate, b1, b2, tau, v0, bias_correction
    )


@validate_arguments
def flash(
    learning_rate: NonNegative = 0.1,
    b1: FractionBelowOne = 0.9,
    b2: FractionBelowOne = 0.99,
    tau: Positive = 1e-3,
    *,
    safe: bool = False,
) -> optax.GradientTransformation:
    """FLASH: FedAdam whose steps become longer where squares exceed their moving average.

        m <- b1 m + (1 - b1) D,   v' = b2 v + (1 - b2) D^2,   b3 = v / (|D^2 - v'| + v), 0 for 0/0
        d <- b3 d + (1 - b3) (D^2 - v'),   v <- v',   w <- w + eta m / (sqrt(v) - d + tau)

    m, v and d start at 0, without bias correction. sqrt(v) has the unit of D and d that of D^2: in the first round d is
    b2 D^2, so the denominator is negative where |D| > sqrt(1 - b2) / b2, about .1, and the step is reversed.

    Args:
        learning_rate: The paper's eta.
        b1: Decay of m.
        b2: Decay of v.
        tau: Degree of adaptivity, positive.
        safe: Whether the denominator is max(sqrt(v) - d, tau), which is never negative.
    """

    def init(params: Params) -> DriftMoments:
        return DriftMoments(*(tree.zeros_like(params) for _ in DriftMoments._fields))

    def update(updates: Params, state: PyTree, params: Params | None = None) -> tuple[Params, DriftMoments]:
        def move(g: Array, m: Array, v: Array, d: Array) -> tuple[Array, DriftMoments]:
            m, old, v = b1 * m + (1 - b1) * g, v, b2 * v + (1 - b2) * jnp.square(g)
            excess = jnp.square(g) - v
            b3 = old / tree.positive_or_one(jnp.abs(excess) + old)
            d = b3 * d + (1 - b3) * excess
            denominator = jnp.maximum(jnp.sqrt(v) - d, tau) if safe else jnp.sqrt(v) - d + tau
            return -learning_rate * m / denominator, DriftMoments(m, v, d)

        moved = jax.tree.map(move, updates, *state)
        steps, new = jax.tree.transpose(
            jax.tree.structure(updates), jax.tree.structure((0, DriftMoments(0, 0, 0))), moved
        )
        return jax.tree.map(lambda x, like: x.astype(like.dtype), (steps, new), (updates, state))

    return optax.GradientTransformation(init, update)


def _adaptive(
    second_moment: SecondMoment,
    learning_rate: float,
    b1: float,
    b2: float,
    tau: float,
    v0: str | float,
    bias_correction: BiasCorrection | None,
) -> optax.GradientTransformation:
    def init(params: Params) -> Moments:
        second = jax.tree.map(lambda x: jnp.full_like(x, tau**2 if isinstance(v0, str) else v0), params)
        return Moments(jnp.zeros((), jnp.int32), tree.zeros_like(params), second)

    def update(updates: Params, state: PyTree, params: Params | None = None) -> tuple[Params, Moments]:
        count = state.count + 1
        first = tree.add(tree.scale(b1, state.first), tree.scale(1 - b1, updates))
        second = jax.tree.map(lambda v, g: second_moment(v, jnp.square(g)).astype(v.dtype), state.second, updates)
        rate = learning_rate
        if bias_correction is not None:
            time = count + LATER[bias_correction]
            rate = rate * jnp.sqrt(1 - jnp.power(b2, time)) / (1 - jnp.power(b1, time))
        step = jax.tree.map(lambda m, v: (-rate * m / (jnp.sqrt(v) + tau)).astype(m.dtype), first, second)
        return step, Moments(count, first, second)

    return optax.GradientTransformation(init, update)
