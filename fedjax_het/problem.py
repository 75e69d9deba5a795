"""The learning problem of a client: a model, an objective, and the preparation of stored examples."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.errors import InputError
from fedjax_het.placeholders import HIDDEN_LABELS, MissingSlotError, seal, unseal
from fedjax_het.privacy import RecordPrivacy
from fedjax_het.types import (
    Array,
    Batch,
    ClientData,
    ClientView,
    Context,
    Examples,
    HostArray,
    Key,
    Model,
    Named,
    Outputs,
    Params,
    PublicInputs,
    PyTree,
    Rows,
    ServerState,
    Variables,
)

Gradient = Callable[..., tuple[tuple[Any, Variables], Params]]
"""The problem, then the arguments of `Problem.value_and_grad` -> its result."""
BatchFold = Callable[[PyTree, Batch, Array], PyTree]
"""(total, batch, number of the batch) -> the new total."""


@jax.tree_util.register_pytree_with_keys_class
class SlotView(dict):
    """The quantities of a slot in a view, by name; reading a missing name raises MissingSlotError."""

    def __init__(self, slot: str, values: dict[str, Any]):
        super().__init__(values)
        self.slot = slot

    def __missing__(self, name: str) -> Any:
        filled = ", ".join(sorted(self)) or "nothing"
        raise MissingSlotError(
            f"reads {self.slot}['{name}'], but this algorithm fills only: {filled}. "
            f'Add {self.slot}={{"{name}": ...}} to the Algorithm.'
        )

    def tree_flatten_with_keys(self):
        names = tuple(sorted(self))
        return [(jax.tree_util.DictKey(name), self[name]) for name in names], (self.slot, names)

    @classmethod
    def tree_unflatten(cls, slot_and_names, values):
        slot, names = slot_and_names
        return cls(slot, dict(zip(names, values, strict=True)))


def order_public(examples: Examples, key: Key) -> Examples:
    """The examples with the public ones in a random order."""
    if examples.public is None:
        return examples
    order = jax.random.permutation(key, jnp.asarray(examples.public.order))
    return examples._replace(public=examples.public._replace(order=order))


class ForwardPass(NamedTuple):
    """One forward pass, which each term of an objective reads."""

    problem: "Problem"
    params: Params
    state: Variables  # the other collections, after the pass
    outputs: Outputs
    batch: Batch
    view: ClientView
    key: Key


def shared_variables(server: ServerState) -> Variables:
    """Return the shared variables as they are sent."""
    return server.shared


class Problem(NamedTuple):
    """The learning problem of a client: a model, an objective, and how stored examples become batches.

    `evaluated` selects the shared variables to evaluate from the state of the server. `privacy` is the noise on
    gradients of single examples, and `gradient` computes such gradients in the place of `value_and_grad`.
    """

    model: Model
    objective: tuple[Callable[[ForwardPass], Array], ...]
    prepare: Callable[[Array], Array]  # stored inputs -> inputs of the model; runs inside the training step
    augment: Callable[[Key, Array, Array], tuple[Array, Array]] | None = None  # see data.augmentation; None: `prepare`
    evaluated: Callable[[ServerState], Variables] = shared_variables
    privacy: RecordPrivacy | None = None
    gradient: Gradient | None = None
    group: int | None = None  # of the client, where groups with different networks are trained by themselves

    def bind(self, frozen: Variables, base: Variables) -> "Problem":
        """The problem of the trained leaves alone: the model then takes variables without its fixed leaves.

        Args:
            frozen: The frozen leaves of the model.
            base: The leaves that the server alone changes; without leaves of both kinds, the problem is the same.
        """
        fixed = tree.merge(frozen, base)
        if not jax.tree.leaves(fixed):
            return self
        model = self.model

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            outputs, state = model.encode(tree.merge(fixed, variables), inputs, context)
            return outputs, tree.partition_like(state, fixed)[0]

        def classify(params: Params, features: Array) -> Array:
            return model.classify(tree.merge(fixed, {"params": params})["params"], features)

        return self._replace(model=model._replace(encode=encode, classify=classify))

    def seal(self, values: PyTree) -> PyTree:
        """The same values, which only noisy gradients may read if gradients are noisy."""
        return values if self.privacy is None else seal(values)

    def input_shape(self, data: ClientData) -> Any:
        """The shape of the model's inputs for one example."""
        stored = unseal(data.examples.inputs)
        return jax.eval_shape(lambda: self.prepare(jnp.zeros((1, *stored.shape[1:]), stored.dtype)))

    def whole_model(self, server: ServerState) -> Variables:
        """All variables of the model to evaluate, except for personal leaves."""
        return tree.merge(server.frozen, server.base, self.evaluated(server))

    def batch(
        self,
        data: ClientData,
        index: HostArray,
        count: HostArray,
        first: HostArray | int,
        size: int,
        key: Key | None = None,
    ) -> Batch:
        """Gather and prepare a batch.

        Args:
            data: The client's data.
            index: A row of an index table, [capacity].
            count: The number of entries; the rest is padding.
            first: The position of the first example in the row.
            size: The batch size; entries beyond `count` are masked.
            key: The key of the augmentation; None: no augmentation.

        Returns:
            The batch.
        """
        slots = first + jnp.arange(size)
        rows = index[jnp.minimum(slots, index.shape[0] - 1)]
        inputs, labels = data.examples.read(rows)
        if key is None or self.augment is None:
            inputs = self.prepare(inputs)
        else:
            inputs, labels = self.augment(key, inputs, labels)
        return Batch(inputs, labels, jnp.asarray(slots < count, jnp.promote_types(inputs.dtype, jnp.float32)))

    def public_batch(self, public: PublicInputs | None, first: Array | int, size: int) -> Batch:
        """Gather and prepare a batch of public examples, without labels.

        Args:
            public: The public examples.
            first: The position of the first in the order of the round; after the last example comes the first.
            size: The batch size.

        Raises:
            MissingSlotError: There are no public examples.
        """
        if public is None:
            raise MissingSlotError(
                "reads public examples, and this federation has none. Give it some: federate(..., public=0.1), or "
                "config.data.public.name='held_out'."
            )
        rows = jnp.asarray(public.order)[(first + jnp.arange(size)) % len(public.order)]
        inputs = self.prepare(jnp.asarray(public.inputs)[rows])
        return Batch(inputs, HIDDEN_LABELS, jnp.ones(size, jnp.promote_types(inputs.dtype, jnp.float32)))

    def fold(
        self, data: ClientData, rows: Rows, batch_size: int, function: BatchFold, init: PyTree, *, is_even: bool = False
    ) -> PyTree:
        """Fold over a client's examples batch by batch, with memory independent of their number.

        Args:
            data: The client's data.
            rows: The examples to use, in order; padding is masked.
            batch_size: The maximum number of examples per batch.
            function: (total, batch, number of the batch) -> the new total.
            init: The initial total, which is the result without examples.
            is_even: Whether batch sizes are balanced, instead of full except for the last.

        Returns:
            The final total.
        """
        size = rows.even_batch_size(batch_size) if is_even else batch_size
        width = max(1, min(batch_size, rows.index.shape[-1]))  # no batch has more examples than a row has entries

        def step(number: Array, total: PyTree) -> PyTree:
            last = jnp.minimum(rows.count, (number + 1) * size)
            return function(total, self.batch(data, rows.index, last, number * size, width), number)

        with jax.named_scope("batches"):
            return jax.lax.fori_loop(0, -(-rows.count // batch_size), step, init)

    def forward(
        self, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key, *, is_training: bool = True
    ) -> ForwardPass:
        """Run the model on a batch.

        Args:
            params: The parameters.
            state: The other collections.
            batch: The batch.
            view: The client's view.
            key: The key of the pass.
            is_training: Whether batch statistics are used and updated.

        Returns:
            The inputs of the terms of an objective.
        """
        noise, key = jax.random.split(key)
        variables = {"params": params, **state}
        outputs, state = self.run(variables, batch, view.received.round, noise, is_training=is_training)
        return ForwardPass(self, params, state, outputs, batch, view, key)

    def run(
        self, variables: Variables, batch: Batch, round: Array, key: Key, *, is_training: bool = True
    ) -> tuple[Outputs, Variables]:
        """(the outputs of a model on a batch, the collections besides params, new); see `forward`."""
        context = Context(batch.mask, round, key, is_training)
        (features, extras), state = self.model.encode(variables, batch.inputs, context)
        return Outputs(features, self.model.classify(variables["params"], features), extras), state

    def loss(
        self, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key, terms: slice = slice(None)
    ) -> tuple[Array, Variables]:
        """The sum of the objective's terms, or a slice of them, in a training pass, and the new state.

        Raises:
            InputError: A term reads a quantity that no slot provides.
        """
        forward = self.forward(params, state, batch, view, key)
        return self.sum_terms(forward, terms), forward.state

    def sum_terms(self, forward: ForwardPass, terms: slice = slice(None)) -> Array:
        """The sum of the objective's terms, or a slice of them, of a forward pass; raises as `loss`."""
        first, *others = (_evaluate(term, forward) for term in self.objective[terms])
        return sum(others, start=first)

    def value_and_grad(
        self, params: Params, state: Variables, batch: Batch, view: ClientView, key: Key, terms: slice = slice(None)
    ) -> tuple[tuple[Array, Variables], Params]:
        """((loss, new state), gradient of the loss in the parameters) of a training pass."""
        if self.gradient is not None:
            return self.gradient(self, params, state, batch, view, key, terms)
        return jax.value_and_grad(self.loss, has_aux=True)(params, state, batch, view, key, terms)


def compares_examples(term: Callable[[ForwardPass], Array]) -> Callable[[ForwardPass], Array]:
    """Mark a term of an objective whose value for a batch is not the mean of its values for single examples.

    The mark is a function of the labels; a term of its own type may define it as a method.
    """
    term.__dict__["compares_examples"] = lambda labels: True
    return term


def _evaluate(term: Callable[[ForwardPass], Array], forward: ForwardPass) -> Array:
    try:
        return term(forward)
    except MissingSlotError as error:
        raise InputError(f"objective term '{term.__name__}' {error}") from None
