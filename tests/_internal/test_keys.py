"""The generator of keys: the random numbers of JAX's threefry2x32, with and without the kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal import keys
from fedjax_het._internal.keys import make_key
from tests.compilation import choose_kernel

DRAWS = {
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 2**32 - 1)),
    "split": lambda key: jax.random.key_data(jax.random.split(key, (3, 4))),
    "bits": lambda key: jax.random.bits(key, (7, 3)),
    "bytes": lambda key: jax.random.bits(key, (), "uint8"),
    "none": lambda key: jax.random.bits(key, (0,)),
    "permutation": lambda key: jax.random.permutation(key, 17),
    "keys under vmap": lambda key: jax.vmap(lambda i: jax.random.normal(jax.random.fold_in(key, i), (9,)))(
        jnp.arange(6)
    ),
    "stacks of keys": lambda key: jax.vmap(jax.vmap(lambda k: jax.random.key_data(jax.random.split(k))))(
        jax.random.split(key, (2, 4))
    ),
}


@pytest.fixture(params=["kernel", "no kernel"])
def implementation(request, monkeypatch):
    choose_kernel(request.param, keys, monkeypatch)


@pytest.mark.usefixtures("implementation")
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
@pytest.mark.parametrize("seed", [0, 2**31 - 1])
def test_random_numbers_are_those_of_jax(draw, seed):
    ours, known = make_key(seed), jax.random.key(seed, impl="threefry2x32")
    expected = np.asarray(draw(known))
    np.testing.assert_array_equal(draw(ours), expected)
    # The jitted function is new: JAX would find the program of the other implementation.
    np.testing.assert_array_equal(jax.jit(lambda key: draw(key))(ours), expected)


def test_counts_of_more_than_32_bits():
    if reason := keys.explain_missing_kernel():
        pytest.skip(reason)
    start = 2**32 - 3  # the words of JAX for these counts: the high one increases
    key = jnp.array([3, 5], "uint32")
    counts = start + np.arange(20, dtype=np.uint64)
    high, low = (jnp.asarray(half.astype(np.uint32)) for half in (counts >> 32, counts))
    expected = jax.extend.random.threefry2x32_p.bind(*key, high, low)
    words = jax.jit(lambda key: keys._words.bind(key, jnp.uint32(start), count=20))(key)
    np.testing.assert_array_equal(words, np.stack(expected, -1))


def test_double_precision():
    with jax.enable_x64(True):
        ours, known = (jax.random.uniform(key, (5,), "float64") for key in (make_key(1), jax.random.key(1)))
    np.testing.assert_array_equal(ours, known)
