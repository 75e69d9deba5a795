import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het._internal.keys import make_key
from fedjax_het._internal.random_order import draw_bits, sort_by_bits

_BITS = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1])  # few, so that some are equal


@settings(deadline=None)
@given(st.lists(st.tuples(_BITS, st.booleans()), min_size=72, max_size=72))
def test_places_are_in_the_order_of_a_stable_sort(entries):
    bits, is_there = np.array([bits for bits, _ in entries], np.uint32), np.array([there for _, there in entries])
    order = jax.jit(sort_by_bits)(bits, is_there)
    assert order.dtype == jnp.int32
    np.testing.assert_array_equal(order, np.lexsort((bits, ~is_there)))


def test_bits_of_a_number_do_not_depend_on_the_others():
    key, numbers = make_key(3), jnp.arange(5)
    np.testing.assert_array_equal(draw_bits(key, numbers)[3], draw_bits(key, numbers[3:4])[0])
    assert len(set(draw_bits(key, numbers).tolist())) == 5
