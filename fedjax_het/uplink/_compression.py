"""Compression stages: the messages of an update, error feedback, and message sizes in bits."""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm, ReceiveView, Sent, Stage, StageView
from fedjax_het.errors import InputError
from fedjax_het.types import Array, Key, PyTree, Variables
from fedjax_het.uplink._clipping import Collections

Scope = Literal["tensor", "model"]
"""Whether each tensor of an update is a separate message, or all tensors are one vector."""
Feedback = Literal["none", "classic", "ef21", "ef21+", "estimates"]
"""How a client accumulates the error of its compressor, see `compression_stage`."""


class Compressor(NamedTuple):
    """A rule that compresses one vector.

    Args:
        decode: (vector [d], private key of the client, key shared by all clients and the server) -> vector that the
            server decodes.
        bits: d -> message size in bits.
        variance: d -> a bound w with E|C(x) - x|^2 <= w |x|^2, for unbiased rules whose error may be larger than x.
    """

    decode: Callable[[Array, Key, Key], Array]
    bits: Callable[[int], float]
    variance: Callable[[int], float] = lambda size: 0.0


def compression_stage(compressor: Compressor, scope: Scope, feedback: Feedback, collections: Collections) -> Stage:
    """Compress each message of an update.

    Error feedback, where u is the client's update of the round and C the compressor; the memory of absent clients is
    unchanged:

        classic   p = e + u;  sent: C(p);  e <- p - C(p)
        ef21      sent: c = C(u - h);  h <- h + c;  the server steps by H <- H + (1/N) sum over the present of c
        ef21+     as ef21, but h <- whichever of h + C(u - h) and C(u) is closer to u
        estimates sent: C(u), where u is the difference from an estimate that the algorithm keeps (CHOCO)

    e accumulates only the compression error, not the error of a later clip, which would grow without bound for a client
    that is always clipped. h starts at zero, so the first message is as small as the others. Feedback requires
    compressors whose error is smaller than their input, so unbiased compressors with a known variance w are scaled
    to C(x) / (1 + w).

    Args:
        compressor: The compressor.
        scope: "tensor" or "model".
        feedback: "none", "classic", "ef21", "ef21+" or "estimates".
        collections: The collections to compress; the others are sent, and counted, uncompressed.

    Returns:
        The stage.

    References:
        Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014.
        Karimireddy et al., Error Feedback Fixes SignSGD and Other Gradient Compression Schemes, ICML 2019.
        Richtarik et al., EF21: A New, Simpler, Theoretically Better, and Practically Faster Error Feedback, NeurIPS
        2021. arXiv:2106.05203
    """

    def compress(update: Variables, view: StageView) -> Variables:
        vectors, join = _messages(update, scope)
        decoded = []
        for number, vector in enumerate(vectors):
            keys = (jax.random.fold_in(key, number) for key in (view.key, view.round_key))
            divisor = 1.0 if feedback == "none" else 1 + compressor.variance(vector.size)
            decoded.append(compressor.decode(vector, *keys) / divisor)
        return join(decoded)

    def count_bits(_: float, shapes: Variables) -> float:
        sizes = [leaf.size for leaf in jax.tree.leaves(shapes)]
        bits = math.fsum(map(compressor.bits, sizes if scope == "tensor" else [sum(sizes)]))
        return bits + (feedback == "ef21+")  # one bit selects the candidate

    def send_plainly(update: Variables, view: StageView) -> Sent:
        return Sent(compress(update, view))

    def send_with_error(update: Variables, view: StageView) -> Sent:
        total = tree.add(view.memory, update)
        sent = compress(total, view)
        return Sent(sent, tree.subtract(total, sent))

    def send_difference(update: Variables, view: StageView) -> Sent:
        kept = tree.add(view.memory, compress(tree.subtract(update, view.memory), view))
        if feedback == "ef21+":
            direct = compress(update, view)
            errors = [tree.squared_norm(tree.subtract(sent, update)) for sent in (direct, kept)]
            kept = tree.where(errors[0] < errors[1], direct, kept)
        return Sent(tree.subtract(kept, view.memory), kept)

    zeros = lambda shared: tree.zeros_like(shared if collections == "all" else {"params": shared["params"]})  # noqa: E731
    if feedback == "none":
        return Stage(send=send_plainly, bits=count_bits, collections=collections)
    if feedback == "estimates":
        return Stage(send=send_plainly, bits=count_bits, collections=collections, check=_check_estimates)
    if feedback == "classic":
        return Stage(
            send=send_with_error, bits=count_bits, collections=collections, init=zeros, check=_warn_of_selection
        )
    return Stage(
        send=send_difference,
        bits=count_bits,
        collections=collections,
        init=zeros,
        init_server=lambda shared, num_clients, cohort_size: zeros(shared),
        receive=_add_to_mean,
        check=_check_mean_of_all,
    )


def _add_to_mean(update: Variables, view: ReceiveView) -> tuple[Variables, PyTree]:
    """H <- H + (1/N) sum over the present of c, given their mean."""
    mean = tree.add(view.state, tree.scale(num_present(view) / view.server.num_clients, update))
    return mean, mean


def _warn_of_selection(algorithm: Algorithm) -> None:
    if algorithm.aggregator.is_selective:
        warnings.warn(
            "feedback: this aggregator discards whole updates, but a client's memory assumes that its update was used. "
            "Use a rule that uses all clients, or feedback='none'.",
            stacklevel=2,
        )


def _check_estimates(algorithm: Algorithm) -> None:
    if "estimate" not in algorithm.memory:
        raise InputError("feedback: 'estimates' needs an algorithm that keeps estimates, such as CHOCO. Use 'classic'.")


def _check_mean_of_all(algorithm: Algorithm) -> None:
    check_uniform_mean(algorithm, "feedback='ef21' keeps the mean of what all clients have sent")


def check_uniform_mean(algorithm: Algorithm, reason: str) -> None:
    """Raise InputError unless the server takes the plain mean over the present clients."""
    if not algorithm.aggregator.is_uniform_mean:
        raise InputError(
            f"uplink: {reason}, which requires the sum of all messages. Use an algorithm with the plain mean, such as "
            "FedAvg with weighting='uniform', or omit it."
        )


def num_present(view: ReceiveView) -> Array:
    """The number of clients whose updates the server has aggregated."""
    return jnp.sum(view.server.is_present)


def _messages(update: Variables, scope: Scope) -> tuple[list[Array], Callable[[Sequence[Array]], Variables]]:
    """(The vectors to compress separately, a function that reassembles an update.)"""
    if scope == "model":
        vector, to_update = ravel_pytree(update)
        return [vector], lambda vectors: to_update(vectors[0])
    leaves, structure = jax.tree.flatten(update)

    def join(vectors: Sequence[Array]) -> Variables:
        pairs = zip(vectors, leaves, strict=True)
        return jax.tree.unflatten(structure, [vector.reshape(leaf.shape) for vector, leaf in pairs])

    return [leaf.ravel() for leaf in leaves], join
