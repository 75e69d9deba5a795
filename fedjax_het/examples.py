"""Records of examples and of the index tables into them. They are also names of `fedjax_het.types`."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Integer, Shaped

from fedjax_het.concepts import Array, Concepts, HostArray, change_inputs, change_labels


class PublicInputs(NamedTuple):
    """Inputs without labels that all clients and the server have."""

    inputs: Shaped[HostArray, "public ..."]
    order: Int[HostArray, " public"]  # drawn anew in every round, the same for all


class Examples(NamedTuple):
    """All examples of a federation, stored once (images as uint8)."""

    inputs: Shaped[HostArray, "examples ..."]
    labels: Integer[HostArray, "examples *pixels"] | Float[HostArray, "examples *targets"]  # see fedjax_het.labels
    public: PublicInputs | None = None  # no client's examples; None without any
    concepts: Concepts | None = None  # how examples may change; None: entries of index tables are positions

    def read(self, rows: Int[HostArray, " batch"]) -> tuple[Array, Array]:
        """The stored inputs and labels of entries of an index table, under their concepts."""
        if self.concepts is None:
            return self.inputs[rows], self.labels[rows]
        concept, number, rows = self._look_up(rows)
        inputs = change_inputs(self.concepts, concept, number, jnp.asarray(self.inputs[rows]))
        return inputs, change_labels(self.concepts, concept, number, jnp.asarray(self.labels[rows]))

    def read_labels(self, rows: Int[HostArray, " batch"]) -> Array:
        """The labels of entries of an index table, see `read`."""
        if self.concepts is None:
            return jnp.asarray(self.labels[rows])
        concept, number, rows = self._look_up(rows)
        return change_labels(self.concepts, concept, number, jnp.asarray(self.labels[rows]))

    def _look_up(self, rows: HostArray) -> tuple[Array, Array, HostArray]:
        """(Concepts, numbers of the examples, positions) of entries of an index table."""
        assert self.concepts
        concept, rows = rows // len(self.labels), rows % len(self.labels)
        numbers = self.concepts.numbers
        return jnp.asarray(concept), jnp.asarray(rows if numbers is None else numbers[rows]), rows


class Rows(NamedTuple):
    """One client's row of an index table into the examples; entries from `count` on are padding."""

    index: Int[HostArray, "*clients capacity"]
    count: Int[HostArray, "*clients"]

    @property
    def is_entry(self) -> Bool[HostArray, "*clients capacity"]:
        """Which entries are not padding."""
        return np.arange(self.index.shape[-1]) < np.asarray(self.count)[..., None]

    def even_batch_size(self, max_size: int) -> HostArray:
        """The size of batches that divide the examples evenly among as few batches as possible.

        None of a client's batches is much smaller than the others, which matters to batch normalization.

        Args:
            max_size: The maximum number of examples per batch.

        Returns:
            Examples per batch, of the shape of `count`; 0 where there are none.
        """
        num_batches = -(-self.count // max_size)
        return -(-self.count // (num_batches + (num_batches == 0)))


class Phase(NamedTuple):
    """The phase of the clients' data in a round."""

    number: Int[Array, ""]  # from 0
    start: Int[Array, ""]  # its first round
    has_class: Bool[Array, "class"]  # whether a client has training examples of the class in this phase
    had_class: Bool[Array, "class"]  # the same for any earlier phase
