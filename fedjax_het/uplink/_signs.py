"""Signs of updates, averaged with a scale or by majority vote."""

import math

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm, ReceiveView, Sent, Stage, StageView
from fedjax_het.types import Array, Key, PyTree, Variables
from fedjax_het.uplink._clipping import Collections
from fedjax_het.uplink._compression import (
    Compressor,
    Feedback,
    Scope,
    check_uniform_mean,
    compression_stage,
    num_present,
)
from fedjax_het.validation import Positive, validate_arguments


@validate_arguments
def sign(
    scaled: bool = True,
    three_valued: bool = False,
    scope: Scope = "tensor",
    feedback: Feedback = "none",
    collections: Collections = "params",
) -> Stage:
    """Send the sign of each entry times the mean magnitude of its message.

        sent: (|u|_1 / d) sign(u)

    Biased, but a contraction, as "classic" feedback requires (EF-signSGD). Bits for d entries: d + 32.

    Args:
        scaled: Whether signs are scaled, which adds the 32 bits; otherwise each entry is sent as +-1.
        three_valued: Whether the sign of zero is zero, at log2 3 bits per entry; otherwise it is +1, at one bit.
        scope: Whether each tensor ("tensor") or the whole update ("model") is one message.
        feedback: Error feedback, see `compression_stage`.
        collections: "params" or "all".

    References:
        Bernstein et al., signSGD: Compressed Optimisation for Non-Convex Problems, ICML 2018. arXiv:1802.04434
        Karimireddy et al., Error Feedback Fixes SignSGD and Other Gradient Compression Schemes, ICML 2019.
    """

    def decode(vector: Array, own: Key, common: Key) -> Array:
        signs = take_signs(vector, three_valued)
        return signs * jnp.mean(jnp.abs(vector)) if scaled else signs

    def count_bits(size: int) -> float:
        return size * bits_of_sign(three_valued) + 32 * scaled

    return compression_stage(Compressor(decode, count_bits), scope, feedback, collections)


@validate_arguments
def majority_vote(step: Positive, three_valued: bool = False, collections: Collections = "params") -> Stage:
    """Move every parameter by a fixed step in the direction that most clients vote for (signSGD with majority vote).

        sent: sign(u_i);   update of the server: step sign(sum_i sign(u_i))

    A tie counts as +1, which needs only one bit. Bits for d entries: d. Sending the vote would take d bits of download,
    but a client that missed a round needs the whole model, so the full model is counted as download.

    Args:
        step: The step size of each parameter per round; typically 1e-4 to 1e-2.
        three_valued: Whether the sign of zero and ties are zero, at log2 3 bits per entry.
        collections: "params" or "all".

    References:
        Bernstein et al., signSGD with Majority Vote is Communication Efficient and Fault Tolerant, ICLR 2019.
    """

    def send(update: Variables, view: StageView) -> Sent:
        return Sent(jax.tree.map(lambda x: take_signs(x, three_valued), update))

    def receive(update: Variables, view: ReceiveView) -> tuple[Variables, PyTree]:
        count = num_present(view)
        votes = jax.tree.map(lambda mean: take_signs(jnp.round(mean * count), three_valued), update)
        return tree.scale(step * (count > 0), votes), ()

    def check(algorithm: Algorithm) -> None:
        check_uniform_mean(algorithm, "majority_vote counts votes")

    return Stage(
        send=send,
        receive=receive,
        collections=collections,
        check=check,
        bits=lambda bits, shapes: tree.num_entries(shapes) * bits_of_sign(three_valued),
    )


def take_signs(values: Array, three_valued: bool) -> Array:
    """The sign of each entry; the sign of zero is 0 if three-valued, else +1."""
    return jnp.sign(values) if three_valued else jnp.where(values >= 0, 1, -1).astype(values.dtype)


def bits_of_sign(three_valued: bool) -> float:
    """The bits per sign."""
    return math.log2(3) if three_valued else 1.0
