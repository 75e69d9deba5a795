"""Gradients that are private for every single example: Poisson batches, clipping, and noise (DP-SGD)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het._internal.random_order import draw_bits, sort_by_bits
from fedjax_het.algorithm import Problem
from fedjax_het.client.optimizers import partition_trained
from fedjax_het.errors import InputError
from fedjax_het.noise import add_noise, clip_layers, clip_norm
from fedjax_het.placeholders import seal, unseal
from fedjax_het.privacy import RecordPrivacy
from fedjax_het.types import Array, Batch, ClientData, ClientView, Key, Params, Variables

_DRAW, _NOISE, _AUGMENTING = 1 << 20, 1 << 21, 1 << 22  # do not collide with the small numbers that split a step's key


def check_training(steps: int | None, shuffle: bool) -> None:
    """Raise InputError for settings of local training that suppose passes over the examples."""
    if not steps:
        raise InputError(
            "steps: not set, and with record_privacy there are no epochs, since each batch is drawn from all examples. "
            "Set the algorithm's steps per round instead of epochs."
        )
    if not shuffle:
        raise InputError("shuffle: has no effect with record_privacy, where batches are drawn at random. Leave it out.")


def start_step(
    problem: Problem, params: Params, view: ClientView, batch_size: int, only: str | None, key: Key
) -> tuple[Problem, Batch]:
    """Draw the batch of a step, which is sealed, and the problem whose gradient of that batch is private.

    Args:
        problem: The client's problem, with the mechanism `problem.privacy`.
        params: The parameters of this step, the only ones at which there is a gradient.
        view: The client's view.
        batch_size: The expected number of examples.
        only: Pattern of the trained parameters, as in `optimizers.trainable_only`; others have no gradient.
        key: The key of the step, which alone determines batch and noise.
    """
    privacy = problem.privacy
    assert privacy is not None
    batch, expected = draw_batch(privacy, problem, unseal(view.data), batch_size, key)
    sealed, known = seal(batch), jax.tree.leaves(params)
    is_used = [False]

    def gradient(
        own: Problem, params: Params, state: Variables, batch: Batch, view: ClientView, _: Key, terms: slice
    ) -> tuple:
        is_same = batch is sealed and all(x is y for x, y in zip(jax.tree.leaves(params), known, strict=True))
        if is_used[0] or not is_same or terms != slice(None):
            raise InputError(
                "record_privacy: the algorithm computes several gradients per step (at other weights, or of parts of "
                "the batch or of the objective), and there is noise for one. Use an algorithm with one gradient per "
                "step, such as fedavg, fedprox or scaffold."
            )
        is_used[0] = True
        own = own._replace(gradient=None)
        return private_gradient(privacy, own, params, state, unseal(batch), view, expected, only, key)

    return problem._replace(gradient=gradient), sealed


def draw_batch(
    privacy: RecordPrivacy, problem: Problem, data: ClientData, batch_size: int, key: Key
) -> tuple[Batch, Array]:
    """Draw every training example with probability q = min(1, B / n): (the batch, its expected size q n).

    The first slots hold the drawn examples in random order, so a random subset is left out if there are too many.
    """
    rows, places = data.train, jnp.arange(data.train.index.shape[0])
    count = jnp.asarray(rows.count)
    rate = jnp.minimum(1, batch_size / jnp.maximum(count, 1))
    bits = draw_bits(jax.random.fold_in(key, _DRAW), places)
    threshold = (jnp.where(rate < 1, rate, 0) * 2.0**32).astype("uint32")
    is_drawn = (places < count) & ((bits < threshold) | (rate >= 1))
    num_slots = min(privacy.num_slots(batch_size), len(places))
    order = sort_by_bits(bits, is_drawn)[:num_slots]
    number = jnp.minimum(jnp.sum(is_drawn), num_slots)
    augmenting = jax.random.fold_in(key, _AUGMENTING)
    batch = problem.batch(data, jnp.asarray(rows.index)[order], number, 0, num_slots, augmenting)
    return batch, rate * count


def private_gradient(
    privacy: RecordPrivacy,
    problem: Problem,
    params: Params,
    state: Variables,
    batch: Batch,
    view: ClientView,
    expected: Array,
    only: str | None,
    key: Key,
) -> tuple[tuple[Array, Variables], Params]:
    """((sealed mean loss, state), gradient) of a batch, see `RecordPrivacy`.

    Raises:
        InputError: There is no noise multiplier; the model or a term of the objective mixes the examples of a batch.
    """
    _check(problem, state, batch.labels)
    count = jnp.sum(batch.mask)

    def differentiate(place: Array) -> tuple[Array, Params]:
        example = jax.tree.map(lambda x: x[place][None], batch)
        (loss, _), gradient = problem.value_and_grad(params, state, example, view, jax.random.fold_in(key, place))
        gradient = partition_trained(gradient, only)[1]
        clipped = (clip_layers if privacy.per_layer else clip_norm)(gradient, privacy.norm)
        is_used = (place < count) & jnp.isfinite(tree.squared_norm(gradient))
        return jnp.where(place < count, loss, 0), tree.where(is_used, clipped, tree.zeros_like(clipped))

    def add_chunk(number: Array, total: tuple[Array, Params]) -> tuple[Array, Params]:
        results = jax.vmap(differentiate)(number * size + jnp.arange(size))
        return tree.add(total, tree.sum_rows(results))

    size = min(privacy.chunk_size, len(batch.mask))
    nothing = tree.zeros_like(jax.eval_shape(differentiate, jnp.zeros((), jnp.int32)))
    num_chunks = -(-count.astype(jnp.int32) // size)
    with jax.named_scope("examples"):
        loss, total = jax.lax.fori_loop(0, num_chunks, add_chunk, nothing)
    noise_key = jax.random.fold_in(key, _NOISE)
    if privacy.noise_seed is not None:
        noise_key = jax.random.fold_in(noise_key, privacy.noise_seed)
    noisy = add_noise(total, _deviation(privacy, view), noise_key)
    gradient = tree.scale(1 / jnp.maximum(expected, 1e-9), noisy)
    frozen = tree.zeros_like(partition_trained(params, only)[0])
    return (seal(loss / jnp.maximum(count, 1)), state), tree.merge(frozen, gradient)


def _check(problem: Problem, state: Variables, labels: Array) -> None:
    """Raise InputError where a gradient would not be private, or not that of the objective."""
    if names := [name for name, leaves in state.items() if tree.num_entries(leaves)]:
        raise InputError(
            f"record_privacy: the model has {', '.join(names)}, which clients would compute from their examples "
            "without noise. Use a model without them, such as norm='group', and an algorithm that does not add them."
        )
    for term in problem.objective:
        compares = getattr(term, "compares_examples", None)
        if compares is not None and compares(labels):
            raise InputError(
                f"record_privacy: the objective's term '{term.__name__}' is not a mean over examples, so it has no "
                "gradient of single examples. Use an objective that is one, such as those of fedavg and fedprox."
            )


def _deviation(privacy: RecordPrivacy, view: ClientView) -> float | Array:
    """The standard deviation of the noise on the sum of this client's gradients."""
    noise = privacy.noise_multiplier
    if noise is None:
        raise InputError(
            "record_privacy: noise_multiplier is not set. Set it, or config.record_privacy.target_epsilon."
        )
    if isinstance(noise, Sequence):
        return privacy.norm * jnp.asarray(noise, float)[view.client]
    return privacy.norm * noise
