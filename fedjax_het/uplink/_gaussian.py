"""Client-level differential privacy: clipping and Gaussian noise."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm, ReceiveView, Sent, Stage, StageView
from fedjax_het.errors import InputError
from fedjax_het.noise import add_noise, clip_layers, clip_norm
from fedjax_het.types import Key, PyTree, Variables
from fedjax_het.uplink._compression import num_present
from fedjax_het.validation import (
    FractionBelowOne,
    NonNegative,
    Positive,
    Seed,
    may_be_nonzero,
    refuse_without_effect,
    validate_arguments,
)

Buffers = Literal["in_vector", "keep_server"]
_COUNT_NOISE = 0.05  # default sigma_b per expected client
_SMALLEST = 1e-6  # lower limit of an adaptive bound, relative to the initial bound


@validate_arguments
def gaussian_mechanism(
    norm: Positive,
    noise_multiplier: NonNegative | None = None,
    *,
    noise_at: Literal["server", "clients"] = "server",
    per_layer: bool = False,
    buffers: Buffers | None = None,
    target_quantile: FractionBelowOne | None = None,
    quantile_rate: Positive = 0.2,
    count_noise: NonNegative | None = None,
    bounded_fraction: bool = False,
    noise_seed: Seed | None = None,
) -> Stage:
    """Clip every update and add Gaussian noise for client-level differential privacy.

        noise_at="server":   u = (sum_i u_i min(1, C / |u_i|) + N(0, (z C)^2)) / (q N)
        noise_at="clients":  u_i <- u_i min(1, C / |u_i|) + N(0, (z C)^2), then the algorithm's own aggregator

    At the server, the aggregator must be the plain mean, no later stage may change the updates, and noise is added in
    every round, whichever clients report: q N, the expected number of clients, is fixed by the participation rule. At
    the clients, each message is private on its own, and later steps cannot weaken the guarantee.
    With a target quantile gamma, the bound adapts to the update norms, through the count of b_i = [|u_i| <= C]:

        b = (sum_i (b_i - 1/2) + N(0, sigma_b^2)) / (q N) + 1/2,   C <- C exp(-eta (b - gamma)),
        with z_delta = (z^-2 - (2 sigma_b)^-2)^(-1/2) instead of z for the updates, so that both together cost z

    Like all floating-point samplers of the Gaussian, this one leaks information in theory.

    Args:
        norm: C, or its initial value; typically 0.1 to 1. It must not be chosen based on these clients' updates.
        noise_multiplier: z, in units of C. None: config.privacy computes it from epsilon.
        noise_at: Where noise is added.
        per_layer: Whether each of the l tensors is clipped separately to C / sqrt(l).
        buffers: The treatment of collections besides the parameters (batch statistics): "in_vector" clips and noises
            them together with the parameters, "keep_server" does not send them, so the server keeps its own. None:
            models that have such collections raise an error.
        target_quantile: gamma, typically .5 (default None, a fixed bound).
        quantile_rate: eta.
        count_noise: sigma_b (default None, .05 q N).
        bounded_fraction: Whether b is clipped to [0, 1], as in TensorFlow Privacy but not in the paper.
        noise_seed: A secret number, so that the noise cannot be derived from the run's seed alone.

    Raises:
        InputError: An argument is out of range, or, when a round is built, the guarantee does not hold.

    References:
        McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018. arXiv:1710.06963
        Andrew et al., Differentially Private Learning with Adaptive Clipping, NeurIPS 2021. arXiv:1905.03871
    """
    is_central, is_adaptive = noise_at == "server", target_quantile is not None
    z = 0.0 if noise_multiplier is None else noise_multiplier
    gamma = 0.0 if target_quantile is None else target_quantile
    if is_adaptive and (per_layer or not is_central):
        other = "per_layer" if per_layer else "noise_at='clients'"
        raise InputError(f"target_quantile: not supported with {other}. Remove one of the two.")

    if not is_adaptive:
        only_adaptive = {
            "quantile_rate": quantile_rate,
            "count_noise": count_noise,
            "bounded_fraction": bounded_fraction,
        }
        refuse_without_effect(gaussian_mechanism, "without target_quantile", **only_adaptive)

    def check(algorithm: Algorithm) -> None:
        place = [stage.check for stage in algorithm.uplink].index(check)
        before, after = algorithm.uplink[:place], algorithm.uplink[place + 1 :]
        _check_measured(algorithm)
        if noise_multiplier is None:
            raise InputError("noise_multiplier: not set. Set it, or a privacy budget such as config.privacy.epsilon=2.")
        if is_central and not algorithm.aggregator.is_uniform_mean:
            raise InputError(
                "noise_at: noise at the server needs a plain mean, unlike this aggregator: with weights by "
                "examples, or another rule, one client can move the result further than norm. Set the algorithm's "
                "weighting='uniform', or noise_at='clients'."
            )
        if any(stage.corrupt for stage in algorithm.uplink):
            raise InputError(
                "gaussian_mechanism: attackers who know all updates can send values that depend on them without a "
                "bound. Remove the attack, or use one in which attackers change only their own update."
            )
        if any(stage.receive for stage in before):
            raise InputError(
                "gaussian_mechanism: an earlier stage also acts on the server's sum (an attack that knows it, or EF21, "
                "which accumulates the noise of all rounds). Remove one of the two."
            )
        if is_central and any(stage.send for stage in after):
            raise InputError(
                "gaussian_mechanism: a later stage changes the messages of clients, so the bound does not hold. Put "
                "gaussian_mechanism last."
            )

    def init_server(shared: Variables, num_clients: int, cohort_size: int) -> PyTree:
        if (others := shared.keys() - {"params"}) and buffers is None:
            raise InputError(
                f"buffers: the model has {', '.join(sorted(others))}, which clients would send without noise. Set "
                "'in_vector' or 'keep_server', or use a model without them, such as norm='group'."
            )
        return jnp.asarray(norm, float) if is_adaptive else ()

    vector = private_part(buffers)

    def send(update: Variables, view: StageView) -> Sent:
        bound, private = view.public if is_adaptive else norm, vector(update)
        sent = clip_layers(private, bound) if per_layer else clip_norm(private, bound)
        if not is_central:
            sent = add_noise(sent, z * norm, fold_secret(view.key, noise_seed))
        statistics = {"count": jnp.where(tree.norm(private) <= bound, 0.5, -0.5)} if is_adaptive else {}
        return Sent(tree.zeros_like(update) | sent, statistics=statistics)

    def receive(update: Variables, view: ReceiveView) -> tuple[Variables, PyTree]:
        expected, key = view.expected_clients, fold_secret(view.key, noise_seed)
        # If exactly the expected number of clients reports, the factor is 1 and the mean is unchanged to the bit.
        mean = tree.scale(num_present(view) / expected, update)
        sum_key, count_key = jax.random.split(key)
        if not is_adaptive:
            return mean | add_noise(vector(mean), z * norm / expected, sum_key), ()
        sigma, bound = count_deviation(z, count_noise, expected), view.state
        noisy = add_noise(vector(mean), split_noise(z, sigma) * bound / expected, sum_key)
        count = add_noise(view.statistics["count"], sigma, count_key)
        fraction = count / expected + 0.5
        fraction = jnp.clip(fraction, 0, 1) if bounded_fraction else fraction
        adapted = bound * jnp.exp(-quantile_rate * (fraction - gamma))
        return mean | noisy, jnp.maximum(adapted, _SMALLEST * norm)

    def bits(entering: float, shapes: Variables) -> float:
        unsent = 8 * tree.num_bytes({name: leaves for name, leaves in shapes.items() if name not in vector(shapes)})
        return entering - unsent + is_adaptive

    return Stage(
        send=send,
        collections="all",
        init_server=init_server,
        publish=lambda state: state,
        receive=receive if is_central else None,
        bits=bits,
        check=check,
        hides_examples=True,
        steps_without_reports=is_central,
    )


def private_part(buffers: Buffers | None) -> Callable[[Variables], Variables]:
    """Update -> the collections that are clipped together and have noise; others are not sent."""
    return lambda update: update if buffers == "in_vector" else {"params": update["params"]}


def fold_secret(key: Key, noise_seed: int | None) -> Key:
    """The key of the noise."""
    return key if noise_seed is None else jax.random.fold_in(key, noise_seed)


def count_deviation(noise_multiplier: float, count_noise: float | None, expected_clients: float) -> float:
    """The standard deviation of the count noise: as given, or .05 per expected client; 0 without noise."""
    if count_noise is not None:
        return count_noise
    return _COUNT_NOISE * expected_clients if may_be_nonzero(noise_multiplier) else 0.0


def split_noise(noise_multiplier: float, count_noise: float) -> float:
    """The noise multiplier of the updates such that updates and count together have multiplier z.

    Args:
        noise_multiplier: z of both releases together.
        count_noise: The standard deviation of the noise on the sum of b_i - 1/2.

    Raises:
        InputError: The count alone exceeds the privacy cost.
    """
    if not may_be_nonzero(noise_multiplier):
        return 0.0
    if not isinstance(noise_multiplier, jax.Array) and noise_multiplier >= 2 * count_noise:
        raise InputError(
            f"count_noise: {count_noise:g} is too small for a noise_multiplier of {noise_multiplier:g}: it must exceed "
            "half of that. Raise it, or use more clients per round."
        )
    return (noise_multiplier**-2 - (2 * count_noise) ** -2) ** -0.5


def _check_measured(algorithm: Algorithm) -> None:
    """Raise InputError for an algorithm whose clients send measurements of their data."""
    for kind, measures in (("reports", algorithm.reports), ("survey", algorithm.survey)):
        if measures:
            names = ", ".join(measures)
            raise InputError(
                f"gaussian_mechanism: the algorithm's clients send {kind} ({names}) besides their updates, without "
                "noise and without a bound, so no guarantee would hold. Use an algorithm whose clients send only "
                "updates, such as fedavg or fedprox."
            )
