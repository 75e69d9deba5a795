"""Keeping the margin of the logits in check (FedLD)."""

import jax
import jax.numpy as jnp

from fedjax_het.algorithm import Term
from fedjax_het.client.objectives.cross_entropy import masked_mean
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, ForwardPass
from fedjax_het.validation import NonNegative, validate_arguments


def _per_example(scores: Array, mask: Array) -> Array:
    return masked_mean(jnp.log1p(jnp.sum(jnp.square(scores), axis=-1)), mask)


def _whole_batch(scores: Array, mask: Array) -> Array:
    return jnp.log1p(jnp.sum(mask * jnp.sum(jnp.square(scores), axis=-1).reshape(mask.shape[0], -1).sum(axis=1)))


FORMS = {
    "logits_mean": _per_example,
    "logits_batch": _whole_batch,
    "softmax_mean": lambda logits, mask: _per_example(jax.nn.softmax(logits), mask),
    "softmax_batch": lambda logits, mask: _whole_batch(jax.nn.softmax(logits), mask),
}


@validate_arguments
def margin(lam: NonNegative = 0.03, form: str = "logits_mean") -> Term:
    """Punish the length of the logits, so that no client grows over-confident on its own distribution.

        logits_mean:    lam 1/B sum_b log(1 + ||z_b||^2)                 (paper, Eq. 3)
        logits_batch:   lam log(1 + sum_b ||z_b||^2)
        softmax_mean:   logits_mean  of softmax(z_b)
        softmax_batch:  logits_batch of softmax(z_b)                     (released code)

    Reads: outputs.logits [batch, class].   lam: the paper's λ, .1 / .03 / .03 on Retina splits 1 / 2 / 3, .01 on
    COVID-FL; 0 is cross-entropy alone.
    The released form is bounded, depends on the batch size and punishes confidence rather than length: choose it only
    to compare with published numbers.
    Zeng et al., FedLD, official code Zeng-Shuang/FedLD, methods/fedld.py.
    """
    if form not in FORMS:
        raise InputError(f"margin: unknown form '{form}'. {nearest(form, FORMS)}")

    def margin(forward: ForwardPass) -> Array:
        return lam * FORMS[form](forward.outputs.logits, forward.batch.mask)

    return margin
