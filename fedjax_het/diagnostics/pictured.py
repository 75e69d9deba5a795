"""Which images a picture shows: the first test images of the first clients of a cohort, and the models they meet."""

import jax

from fedjax_het.diagnostics.seen import global_models
from fedjax_het.errors import InputError
from fedjax_het.types import Batch, PyTree, RoundSnapshot, Variables

MOST_CLIENTS, IMAGES = 4, 2


def image_shape(problem, look: RoundSnapshot, name: str) -> tuple[int, int, int]:
    """(height, width, channel) as the model takes them. Raises InputError for inputs that are no images."""
    shape = jax.eval_shape(problem.prepare, look.data.examples.inputs[:1]).shape[1:]
    if len(shape) != 3:
        raise InputError(f"diagnostics: '{name}' is for images [height, width, channel], not for inputs {shape}.")
    return shape


def pictured(problem, look: RoundSnapshot, name: str) -> tuple[Variables, Batch]:
    """(the server's new model with these clients' own leaves, their images), leaves [clients, ...].

    Batch leaves: [clients, IMAGES, ...], clients = min(MOST_CLIENTS, cohort); a client with fewer test images than
    IMAGES has mask 0 where one is missing.
    Raises InputError for inputs that are no images, and where no client has test examples of its own.
    """
    image_shape(problem, look, name)
    if look.data.test is None:
        raise InputError(
            f"diagnostics: '{name}' shows clients' own test images, and no client has any. Give them some: "
            "data.client_test_fraction=0.2, or data.local_test=True."
        )

    def first(stack: PyTree) -> PyTree:
        return jax.tree.map(lambda x: x[:MOST_CLIENTS], stack)

    batches = jax.vmap(lambda row: problem.batch(look.data, row.index, row.count, 0, IMAGES))(first(look.data.test))
    return first(global_models(look)), batches
