"""The loss that says what is to be learned, apart from how: an algorithm's other terms stand beside it."""

from fedjax_het.algorithm import Term
from fedjax_het.client.objectives.cross_entropy import cross_entropy
from fedjax_het.client.objectives.dice import dice
from fedjax_het.errors import InputError, nearest

TASK_LOSSES: dict[str, tuple[Term, ...]] = {
    "cross_entropy": (cross_entropy(),),
    "dice": (dice(),),
    "joint": (cross_entropy(0.5), dice(0.5)),
}
"""joint: the mean of both, HarmoFL's for segmentation (official code med-air/HarmoFL, utils/loss.py)."""


def with_task_loss(objective: tuple[Term, ...], name: str) -> tuple[Term, ...]:
    """An objective with another of TASK_LOSSES in the place of its cross-entropy.

    Raises InputError for an unknown name, and for an objective without that term: its loss is the algorithm's own.
    """
    if name not in TASK_LOSSES:
        raise InputError(f"task_loss: no loss '{name}'. {nearest(name, TASK_LOSSES)}")
    if name == "cross_entropy":
        return objective
    if not any(map(_is_task_loss, objective)):
        own = ", ".join(term.__name__ for term in objective)
        raise InputError(
            f"task_loss: '{name}' has no place in this algorithm, whose loss is its own ({own}). "
            "Leave task_loss='cross_entropy', or take another algorithm."
        )
    return tuple(each for term in objective for each in (TASK_LOSSES[name] if _is_task_loss(term) else (term,)))


def _is_task_loss(term: Term) -> bool:
    return getattr(term, "is_task_loss", False)
