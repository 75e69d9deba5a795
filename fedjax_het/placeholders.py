"""Placeholders for quantities that a part of an algorithm must not read: reading one raises MissingSlotError."""

from typing import Any, NoReturn, cast

import jax

from fedjax_het.types import Array, PyTree, Rows


class MissingSlotError(LookupError):
    """A part of an algorithm reads a quantity that no slot fills."""


@jax.tree_util.register_static
class HiddenTestRows:
    """Placeholder for a client's test examples in a round: access raises MissingSlotError."""

    @property
    def index(self) -> Any:
        raise MissingSlotError("reads data.test, but test examples take no part in a round. Read data.valid.")

    count = index


HIDDEN_TEST_ROWS = cast(Rows, HiddenTestRows())


@jax.tree_util.register_static
class HiddenExampleCounts:
    """Placeholder for numbers of examples that are hidden from the server: computing with them fails."""

    def __jax_array__(self) -> Array:
        raise MissingSlotError(
            "reads clients' numbers of examples, which a stage of the uplink keeps from the server. Set "
            "weighting='uniform', or take an aggregator that does not weigh by them."
        )


HIDDEN_EXAMPLE_COUNTS = cast(Array, HiddenExampleCounts())


@jax.tree_util.register_static
class HiddenLabels:
    """Placeholder for the labels of public examples: computing with them fails."""

    def __jax_array__(self) -> Array:
        raise MissingSlotError("reads labels of public examples, which have none.")


HIDDEN_LABELS = cast(Array, HiddenLabels())


@jax.tree_util.register_static
class HiddenClasses:
    """Placeholder for the classes of a phase, which would be published without noise: computing with them fails."""

    def __jax_array__(self) -> Array:
        raise MissingSlotError(
            "reads the classes that clients have in a phase, which no guarantee of privacy covers. Choose an algorithm "
            "that does not read them, or leave the privacy mechanism out."
        )

    __and__ = __rand__ = __or__ = __ror__ = __invert__ = __getitem__ = lambda self, *_: self.__jax_array__()


HIDDEN_CLASSES = cast(Array, HiddenClasses())


@jax.tree_util.register_pytree_node_class
class Sealed:
    """An array that only noisy gradients may read: computing with it raises MissingSlotError.

    Args:
        value: The array.
    """

    def __init__(self, value: Any):
        self.value = value

    def _refuse(self, *_: Any) -> NoReturn:
        raise MissingSlotError(
            "reads a client's examples, or what follows from them, other than by the one noisy gradient of each step, "
            "which record_privacy does not cover. Use an algorithm whose clients send only updates, and whose "
            "objective is a mean over examples, such as fedavg, fedprox or scaffold."
        )

    __jax_array__ = __getitem__ = __len__ = __bool__ = __float__ = __lt__ = __gt__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    def tree_flatten(self):
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, _, values):
        return cls(*values)


def seal(values: PyTree) -> PyTree:
    """The same tree with `Sealed` leaves."""
    return jax.tree.map(Sealed, values)


def unseal(values: PyTree) -> PyTree:
    """The same tree with the arrays of its `Sealed` leaves."""
    return jax.tree.map(lambda x: x.value if _is_sealed(x) else x, values, is_leaf=_is_sealed)


def refuse_sealed(values: PyTree) -> PyTree:
    """The same tree; raise MissingSlotError if it has `Sealed` leaves."""
    for leaf in filter(_is_sealed, jax.tree.leaves(values, is_leaf=_is_sealed)):
        leaf._refuse()
    return values


def _is_sealed(value: Any) -> bool:
    return isinstance(value, Sealed)
