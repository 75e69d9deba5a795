"""A client's learning problem: a model, an objective, and how stored examples become inputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het.errors import InputError
from fedjax_het.types import (
    Array,
    Batch,
    ClientData,
    ClientView,
    Context,
    ForwardPass,
    Key,
    Model,
    Outputs,
    Params,
    PyTree,
    Rows,
    Variables,
)


class MissingSlotError(LookupError):
    """Somebody read a quantity that nothing in the algorithm provides."""


@jax.tree_util.register_pytree_with_keys_class
class SlotView(dict):
    """One of the named channels of a view; reading a name that nobody fills is explained."""

    def __init__(self, channel: str, values: dict[str, Any]):
        super().__init__(values)
        self.channel = channel

    def __missing__(self, name: str) -> Any:
        filled = ", ".join(sorted(self)) or "nothing"
        raise MissingSlotError(
            f"reads {self.channel}['{name}'], but this algorithm fills only: {filled}. "
            f'Add {self.channel}={{"{name}": ...}} to the Algorithm.'
        )

    def tree_flatten_with_keys(self):
        names = tuple(sorted(self))
        return [(jax.tree_util.DictKey(name), self[name]) for name in names], (self.channel, names)

    @classmethod
    def tree_unflatten(cls, channel_and_names, values):
        channel, names = channel_and_names
        return cls(channel, dict(zip(names, values, strict=True)))


@jax.tree_util.register_static
class HiddenTestRows:
    """Stands in a round for a client's test examples: a part that reads them is told so."""

    @property
    def index(self) -> Any:
        raise MissingSlotError("reads data.test, but what is tested on takes no part in a round. Read data.valid.")

    count = index


HIDDEN_TEST_ROWS = HiddenTestRows()


class LocalProblem(NamedTuple):
    model: Model
    objective: tuple[Callable[[ForwardPass], Array], ...]
    prepare: Callable[[Array], Array]  # stored inputs -> what the model takes; runs inside the step
    augment: Callable[[Key, Array, Array], tuple[Array, Array]] | None = None  # the same in training; None: no other

    def batch(
        self, data: ClientData, index: Array, count: Array, first: Array | int, size: int, key: Key | None = None
    ) -> Batch:
        """Examples first .. first + size of an index row [capacity] that holds `count`; the rest is masked padding.

        key: they are to train on, hence augmented where the federation says so.
        """
        slots = first + jnp.arange(size)
        rows = index[jnp.minimum(slots, index.shape[0] - 1)]
        inputs, labels = data.examples.inputs[rows], data.examples.labels[rows]
        if key is None or self.augment is None:
            inputs = self.prepare(inputs)
        else:
            inputs, labels = self.augment(key, inputs, labels)
        return Batch(inputs, labels, (slots < count).astype(inputs.dtype))

    def fold(
        self,
        data: ClientData,
        rows: Rows,
        batch_size: int,
        function: Callable[[PyTree, Batch, Array], PyTree],
        init: PyTree,
        *,
        is_even: bool = False,
    ) -> PyTree:
        """Go over one client's examples batch by batch, so that memory does not grow with their number.

        Args:
            data: The client's data.
            rows: Which of its examples, in this order; those of the padding are masked.
            batch_size: The most examples per batch.
            function: (total, batch, number of the batch) -> the new total.
            init: The first total, and the result where there is no example.
            is_even: Whether batches are as even as their number allows, instead of full but for the last.

        Returns:
            The last total.
        """
        size = rows.even_batch_size(batch_size) if is_even else batch_size

        def step(number: Array, total: PyTree) -> PyTree:
            last = jnp.minimum(rows.count, (number + 1) * size)
            return function(total, self.batch(data, rows.index, last, number * size, batch_size), number)

        return jax.lax.fori_loop(0, -(-rows.count // batch_size), step, init)

    def forward(
        self, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key, *, is_training: bool = True
    ) -> ForwardPass:
        noise, key = jax.random.split(key)
        context = Context(batch.mask, view.received.round, noise, is_training)
        (features, extras), state = self.model.encode({"params": params, **state}, batch.inputs, context)
        outputs = Outputs(features, self.model.classify(params, features), extras)
        return ForwardPass(self, params, state, outputs, batch, view, key)

    def loss(
        self, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[Array, Variables]:
        """(the sum of the objective's terms, the new state) of a training pass."""
        forward = self.forward(params, state, batch, view, key)
        return sum(_evaluate(term, forward) for term in self.objective), forward.state

    def value_and_grad(
        self, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key
    ) -> tuple[tuple[Array, Variables], Params]:
        return jax.value_and_grad(self.loss, has_aux=True)(params, state, batch, view, key)


def _evaluate(term: Callable[[ForwardPass], Array], forward: ForwardPass) -> Array:
    try:
        return term(forward)
    except MissingSlotError as unfilled:
        raise InputError(f"objective term '{term.__name__}' {unfilled}") from None
