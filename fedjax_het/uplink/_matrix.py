"""Client-level differential privacy with noise that is correlated over rounds (DP-FTRL, matrix factorization)."""

from dataclasses import replace
from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_het import noise, tree
from fedjax_het.algorithm import ReceiveView, Stage
from fedjax_het.annotations import RunSetting
from fedjax_het.errors import InputError
from fedjax_het.types import PyTree, Variables
from fedjax_het.uplink._compression import num_present
from fedjax_het.uplink._gaussian import Buffers, fold_secret, gaussian_mechanism, private_part
from fedjax_het.uplink._noise_strategies import StrategyName, noise_strategy
from fedjax_het.validation import Count, NonNegative, Positive, Seed, validate_arguments


@validate_arguments
def matrix_mechanism(
    norm: Positive,
    noise_multiplier: NonNegative | None = None,
    *,
    rounds: Annotated[Count, RunSetting("rounds")],
    separation: Count,
    strategy: StrategyName = "banded",
    bands: Count | None = None,
    num_buffers: Count = 3,
    normalize_columns: bool = False,
    per_layer: bool = False,
    buffers: Buffers | None = None,
    noise_seed: Seed | None = None,
) -> Stage:
    """Clip every update and add Gaussian noise at the server that partly cancels over the rounds.

        u_t = (sum_i u_i min(1, C / |u_i|) + z sens(S) C (S^-1 Z)_t) / m,   Z: independent standard normals

    Without sampling of clients: the guarantee is that of one Gaussian mechanism with noise multiplier z over all
    rounds, `privacy.epsilon(z, PoissonSampling(1.0), 1, delta)`, for adding or removing a client whose participations
    are at least `separation` rounds apart. The run needs a participation rule that keeps this distance, such as
    `participation.cyclic` or `participation.waiting`; m is its mean number of clients. The aggregator must be the plain
    mean, as for `gaussian_mechanism`. The normals of round t are a function of (seed, t); the server keeps the earlier
    noise that the strategy needs, which is part of checkpoints.

    Args:
        norm: C. It must not be chosen based on these clients' updates.
        noise_multiplier: z, relative to the sensitivity of the whole run. None: config.privacy computes it from
            epsilon.
        rounds: The number of rounds of the run, at most.
        separation: The minimum number of rounds from one participation of a client to its next. The number of rounds
            means that each takes part once.
        strategy: The matrix S, see `noise_strategy`.
        bands: As in `noise_strategy` (default None, the separation).
        num_buffers: As in `noise_strategy`.
        normalize_columns: As in `noise_strategy`.
        per_layer: As in `gaussian_mechanism`.
        buffers: As in `gaussian_mechanism`.
        noise_seed: A secret number, so that the noise cannot be derived from the run's seed alone.

    Raises:
        InputError: An argument is out of range or has no effect, or, when a run is built, the guarantee does not hold.

    References:
        Those of `noise_strategy`; Denisov et al., Improved Differential Privacy for SGD via Optimal Private Linear
        Operators on Adaptive Streams, NeurIPS 2022. arXiv:2202.08312
    """
    chosen = noise_strategy(strategy, rounds, separation, bands, num_buffers, normalize_columns)
    sensitivity, vector = chosen.sensitivity(), private_part(buffers)
    independent = gaussian_mechanism(norm, noise_multiplier, per_layer=per_layer, buffers=buffers)
    z = 0.0 if noise_multiplier is None else noise_multiplier

    def init_server(shared: Variables, num_clients: int, cohort_size: int) -> PyTree:
        independent.init_server(shared, num_clients, cohort_size)  # refuses collections without noise
        return tree.zeros_like(tree.broadcast(vector(shared), chosen.size)) if chosen.size else ()

    def receive(update: Variables, view: ReceiveView) -> tuple[Variables, PyTree]:
        mean = tree.scale(num_present(view) / view.expected_clients, update)
        key = jax.random.split(fold_secret(view.key, noise_seed))[0]  # as of the independent noise
        normals, structure = jax.tree.flatten(noise.draw_normals(key, vector(mean)))
        kept = jax.tree.leaves(view.state) if chosen.size else [jnp.zeros((0, *leaf.shape)) for leaf in normals]
        number = view.server.received.round
        steps = [chosen.step(before, normal, number) for before, normal in zip(kept, normals, strict=True)]
        correlated, state = (structure.unflatten(parts) for parts in zip(*steps, strict=True))
        deviation = z * norm * sensitivity / view.expected_clients
        return mean | tree.add(vector(mean), tree.scale(deviation, correlated)), state if chosen.size else ()

    def check_run(min_separation: int, num_rounds: int) -> None:
        if min_separation < separation:
            raise InputError(
                f"separation: clients can take part again after {min_separation} rounds, less than {separation}, so "
                "the guarantee does not hold. Use the participation 'cyclic' with this period, or 'waiting' with this "
                "separation."
            )
        if num_rounds > rounds:
            raise InputError(f"rounds: the noise is for {rounds} rounds, and the run has {num_rounds}. Raise it.")

    return replace(independent, init_server=init_server, publish=lambda state: (), receive=receive, check_run=check_run)
