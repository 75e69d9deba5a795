"""Episodic gradient rules: learning on examples as other clients might have taken them (FedDG)."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import GradientRule, Problem
from fedjax_het.client.gradients import LossAndState
from fedjax_het.client.objectives import PairTerm
from fedjax_het.client.optimizers import partition_trained
from fedjax_het.spectra import SquareBand, interpolate_amplitudes
from fedjax_het.types import Array, Batch, ClientView, Key, Params, Variables
from fedjax_het.validation import Finite, Fraction, NonNegative, Positive, may_be_nonzero, validate_arguments

Alteration = Callable[[Batch, ClientView, Key], Array]
"""Returns altered inputs of a batch."""
_ALTERATION, _SECOND_PASS = 1 << 18, 1 << 19  # do not collide with the small numbers that split a step's key


@validate_arguments
def episodic_gradient(
    alteration: Alteration,
    agreement: PairTerm | None = None,
    *,
    inner_step: NonNegative = 1e-3,
    inner_clip: Positive | None = 100.0,
    order: Literal["first", "second"] = "first",
    only: str | None = None,
) -> GradientRule:
    """The gradient at w of the objective on a batch, plus that on the altered batch after an inner step on the first.

        L(x; w) + L(x'; w') + agreement,   w' = w - s clamp(grad L(x; w), -c, c),   x' = alteration(x)

    L is the sum of the objective's terms. First order treats w' - w as a constant: the gradient is the sum of the
    ordinary gradients at w and at w'. The reported loss is the whole sum. Batch statistics are updated in both passes,
    in this order.

    Args:
        alteration: Batch -> altered inputs.
        agreement: A term of both passes, such as `objectives.boundary_contrast`. None: no term.
        inner_step: s. 0: w' = w.
        inner_clip: c, for every entry of the gradient. None: no clamping.
        order: "first", or "second", which differentiates through the inner step.
        only: Pattern of the parameters that the inner step changes, see `optimizers.trainable_only`.

    Raises:
        InputError: A number is out of range.

    References:
        Liu et al., FedDG, CVPR 2021. arXiv:2103.06030
    """

    def rule(
        problem: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[LossAndState, Params]:
        altered = batch._replace(inputs=alteration(batch, view, jax.random.fold_in(key, _ALTERATION)))

        def inner_loss(params: Params) -> Array:
            return problem.sum_terms(problem.forward(params, state, batch, view, key))

        def take_inner_step(params: Params) -> Params:
            if not may_be_nonzero(inner_step):
                return params
            start = jax.lax.stop_gradient(params) if order == "first" else params
            frozen, step = partition_trained(jax.grad(inner_loss)(start), only)
            if inner_clip is not None:
                step = jax.tree.map(lambda leaf: jnp.clip(leaf, -inner_clip, inner_clip), step)
            return tree.subtract(params, tree.merge(tree.zeros_like(frozen), tree.scale(inner_step, step)))

        def loss(params: Params) -> LossAndState:
            first = problem.forward(params, state, batch, view, key)
            second_key = jax.random.fold_in(key, _SECOND_PASS)
            second = problem.forward(take_inner_step(params), first.state, altered, view, second_key)
            total = problem.sum_terms(first) + problem.sum_terms(second)
            return total if agreement is None else total + agreement(first, second), second.state

        return jax.value_and_grad(loss, has_aux=True)(params)

    return rule


@validate_arguments
def interpolated_amplitudes(
    band: SquareBand = 0.01, rate: Literal["uniform"] | Fraction = "uniform", clip: tuple[Finite, Finite] | None = None
) -> Alteration:
    """Images whose low-frequency amplitudes are interpolated with those of another client's image.

    For each image, a client is drawn uniformly from the other clients with known amplitudes, and then one of its
    images, with replacement; see `spectra.interpolate_amplitudes`. If no other client is known, images are unchanged.

    Reads: published["amplitudes"] (`measures.low_frequency_amplitudes`, by `summaries.latest_of_clients`).

    Args:
        band: Frequency band, as in the measure.
        rate: Weight of the other amplitude, or "uniform": drawn from 0..1 for each image.
        clip: Range to which pixels are clipped afterwards. None: no clipping.

    Raises:
        InputError: A number is out of range.
    """

    def alter(batch: Batch, view: ClientView, key: Key) -> Array:
        known = view.received.published["amplitudes"]
        is_other = known["is_known"] & (jnp.arange(len(known["is_known"])) != view.client)
        ranks = jnp.cumsum(is_other)

        def draw(key: Key) -> tuple[Array, Array]:
            client_key, image_key, rate_key = jax.random.split(key, 3)
            rank = jax.random.randint(client_key, (), 1, ranks[-1] + 1)
            client = jnp.argmax(ranks >= rank)
            count = known["latest"]["count"][client].astype(int)
            image = jax.random.randint(image_key, (), 0, jnp.maximum(count, 1))
            share = jax.random.uniform(rate_key) if isinstance(rate, str) else jnp.asarray(rate, float)
            return known["latest"]["amplitudes"][client, image], share

        amplitudes, rates = jax.vmap(draw)(jax.random.split(key, len(batch.inputs)))
        rates = jnp.where(ranks[-1] > 0, rates, 0)
        images = interpolate_amplitudes(batch.inputs, amplitudes, rates, band)
        return images if clip is None else jnp.clip(images, *clip)

    return alter
