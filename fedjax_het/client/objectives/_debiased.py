"""Cross-entropy with more weight on few-shot classes, by the drift of the client's head (FedRD)."""

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Literal

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Term
from fedjax_het.client.objectives._supervised import count_classes
from fedjax_het.errors import InputError
from fedjax_het.labels import cross_entropies, is_counted
from fedjax_het.problem import ForwardPass, compares_examples
from fedjax_het.types import Array, ClientData, Params
from fedjax_het.validation import CountOrZero, Fraction, validate_arguments

LambdaTime = Literal["epoch", "step", "prev_round"]
Divergence = Literal["row_l2_mean", "frobenius", "per_class"]
Divisor = Literal["weights", "batch"]
DIVERGENCES: dict[Divergence, Callable[[Array], Array]] = {
    "row_l2_mean": lambda change: jnp.mean(_class_norms(change)),
    "frobenius": lambda change: jnp.sqrt(jnp.sum(jnp.square(change))),
    "per_class": lambda change: _class_norms(change),
}


@validate_arguments
def debiased_cross_entropy(
    few_shot: Sequence[CountOrZero] | Sequence[Sequence[CountOrZero]] | None = None,
    lambda_every: LambdaTime = "epoch",
    *,
    divergence: Divergence = "row_l2_mean",
    normalise: Divisor = "weights",
    share: Fraction = 0.5,
) -> Term:
    """Cross-entropy with weight 1 + lambda for the client's few-shot classes S_i, and 1 for the others.

        lambda = 1/C sum_c ||W_start[c] - W_now[c]||,   L = sum_b w_{y_b} CE_b / sum_b w_{y_b}

    W: the head's last weight, without bias; lambda is constant in the gradient.
    Shapes: logits [batch, class] with labels [batch], or maps of both as in `cross_entropy`.
    Reads: view.start, the examples' labels, and view.local or memory["head"] (`memories.last_head`) by lambda_every.

    Args:
        few_shot: S_i, a list for all clients, or a list of lists by client id (clients beyond it have no few-shot
            classes). None: the classes c with 0 < n_ic < share n_i / (classes present).
        lambda_every: When W_now is taken: at the start of each "epoch" (code; with one epoch per round lambda stays 0),
            at each "step", or at the end of the client's last training ("prev_round"; lambda is 0 before it).
        divergence: "row_l2_mean", "frobenius" ||W_start - W_now||, or "per_class" w_c = 1 + ||row c||.
        normalise: Denominator of the loss: sum of the "weights" (code), or number of examples in the "batch".
        share: Threshold for few_shot=None, relative to the mean number of examples per class.

    Raises:
        InputError: Unknown options, invalid classes, and, when traced, classes that the head does not have.

    References:
        FedRD: Reducing Divergences for Generalized Federated Learning; official code Kailee-WANG/NeurIPS25-FedRD,
        utils/trainval_func.py.
    """

    def debiased_cross_entropy(forward: ForwardPass) -> Array:
        logits, labels, mask = forward.outputs.logits, forward.batch.labels, forward.batch.mask
        num_classes = logits.shape[-1]
        if few_shot is None:
            is_few_shot = few_shot_classes(forward.view.data, num_classes, share)
        else:
            is_few_shot = _few_shot_from_list(few_shot, num_classes, forward.view.client)
        drift = DIVERGENCES[divergence](_head_change(forward, lambda_every, num_classes))
        class_weights = 1.0 + jnp.where(is_few_shot, drift, 0)
        losses = cross_entropies(logits, labels)
        is_example = tree.add_axes(mask, labels.ndim) * is_counted(labels)
        weights = is_example * class_weights[labels]
        total = jnp.sum(weights if normalise == "weights" else is_example)
        return jnp.sum(weights * losses) / tree.positive_or_one(total)

    return compares_examples(debiased_cross_entropy) if normalise == "weights" else debiased_cross_entropy


def few_shot_classes(data: ClientData, num_classes: int, share: float = 0.5) -> Array:
    """[class] bool: present classes with less than `share` of the client's mean number per present class."""
    counts = count_classes(data, num_classes)
    has = counts > 0
    return has & (counts < share * jnp.sum(counts) / jnp.maximum(jnp.sum(has), 1))


def head_weight(params: Params, num_classes: int) -> Array:
    """[feature, class]: the last weight of the head at params/classifier."""
    leaves = tree.leaves_by_path(params.get("classifier", {}))
    weights = [
        leaves[path] for path in sorted(leaves) if leaves[path].ndim == 2 and leaves[path].shape[1] == num_classes
    ]
    if not weights:
        raise InputError(
            f"the debiased classifier needs a weight [feature, {num_classes}] at params/classifier, got "
            f"{', '.join(sorted(leaves)) or 'nothing'}. Use a model with a linear head of that name."
        )
    return weights[-1]


def _head_change(forward: ForwardPass, lambda_every: str, num_classes: int) -> Array:
    view = forward.view
    start = head_weight(view.start["params"], num_classes)
    if lambda_every == "step":
        return jax.lax.stop_gradient(head_weight(forward.params, num_classes)) - start
    if lambda_every == "epoch":
        return head_weight(view.local["params"], num_classes) - start
    head = view.memory["head"]
    return jnp.where(head["is_known"], head_weight({"classifier": head["value"]}, num_classes) - start, 0)


def _class_norms(change: Array) -> Array:
    return jnp.sqrt(jnp.sum(jnp.square(change), axis=0))


def _few_shot_from_list(few_shot: Sequence, num_classes: int, client: Array | int) -> Array:
    lists = few_shot if _is_by_client(few_shot) else [few_shot]
    for classes in lists:
        if any(c >= num_classes for c in classes):
            raise InputError(f"few_shot: {list(classes)} names a class that is not among 0..{num_classes - 1}.")
    table = jnp.asarray([[c in classes for c in range(num_classes)] for classes in lists])
    return table.at[client if _is_by_client(few_shot) else 0].get(mode="fill", fill_value=False)


def _is_by_client(few_shot: Sequence) -> bool:
    return len(few_shot) > 0 and not isinstance(few_shot[0], Integral)
