"""Keys of random numbers."""

import jax

from fedjax_het.types import Array, Key


def make_key(seed: int | Array) -> Key:
    """Make a key of a named generator, so that `JAX_DEFAULT_PRNG_IMPL` doesn't change results.

    Args:
        seed: An integer.

    Returns:
        A typed key of the generator threefry2x32.
    """
    return jax.random.key(seed, impl="threefry2x32")
