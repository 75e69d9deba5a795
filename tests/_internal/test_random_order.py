import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedjax_het._internal import keys
from fedjax_het._internal.keys import make_key
from fedjax_het._internal.random_order import draw_bits, sort_by_bits
from tests.compilation import choose_kernel

_BITS = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1])  # few, so that some are equal


@pytest.fixture(params=["kernel", "no kernel"], autouse=True)
def sort(request, monkeypatch):
    choose_kernel(request.param, keys, monkeypatch)
    return jax.jit(lambda *arguments: sort_by_bits(*arguments))


def check_order(order, bits, is_there):
    np.testing.assert_array_equal(order, np.lexsort((np.where(is_there, bits, 0), ~is_there)))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(_BITS, st.booleans()), min_size=72, max_size=72))
def test_places_are_in_the_order_of_a_stable_sort(sort, entries):
    bits, is_there = np.array([bits for bits, _ in entries], np.uint32), np.array([there for _, there in entries])
    order = sort(bits, is_there)
    assert order.dtype == jnp.int32
    check_order(order, bits, is_there)


@pytest.mark.parametrize("size", [1, 5, 1000, 70_000])
def test_sizes(sort, size):
    rng = np.random.default_rng(size)
    bits, is_there = rng.integers(0, 1 << 32, size, np.uint32), rng.random(size) < 0.7
    check_order(sort(bits, is_there), bits, is_there)


def test_bits_of_a_number_do_not_depend_on_the_others():
    key, numbers = make_key(3), jnp.arange(5)
    np.testing.assert_array_equal(draw_bits(key, numbers)[3], draw_bits(key, numbers[3:4])[0])
    assert len(set(draw_bits(key, numbers).tolist())) == 5


@pytest.mark.parametrize("impl", ["threefry2x32", keys.GENERATOR])
def test_bits_are_those_of_folded_keys(impl):
    key, numbers = jax.random.key(7, impl=impl), jnp.array([0, 1, 2, 3, 7, 8, 9, 100, -1, 2**31 - 1, 5])
    wanted = [jax.random.bits(jax.random.fold_in(key, number)) for number in numbers]
    np.testing.assert_array_equal(draw_bits(key, numbers), wanted)


def test_other_generators_draw_by_their_own_rule():
    key, numbers = jax.random.key(7, impl="rbg"), jnp.arange(5)
    draw = lambda number: jax.random.bits(jax.random.fold_in(key, number))  # noqa: E731
    np.testing.assert_array_equal(draw_bits(key, numbers), jax.vmap(draw)(numbers))


def test_several_keys_and_orders():
    several, numbers = jax.random.split(make_key(1), 3), jnp.arange(100)
    bits = jax.vmap(draw_bits, (0, None))(several, numbers)
    np.testing.assert_array_equal(bits, [draw_bits(key, numbers) for key in several])
    order = jax.vmap(sort_by_bits, (0, None))(bits, numbers < 70)
    np.testing.assert_array_equal(order, [sort_by_bits(own, numbers < 70) for own in bits])
