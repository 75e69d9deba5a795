"""Poisson sampling into a fixed number of places."""

import jax
import numpy as np
import pytest
import scipy.stats

from fedjax_het._internal.keys import make_key
from fedjax_het.engine.round.participation import bernoulli, min_slots, poisson

DRAWS = 4000


def masks(rule, num_clients: int, draws: int = DRAWS) -> np.ndarray:
    """[draws, clients]: who takes part."""

    def draw(key):
        cohort, is_drawn = rule.draw(key, num_clients, 0)
        return jax.numpy.zeros(num_clients, bool).at[cohort].set(is_drawn)

    return np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(make_key(3), draws)))


def test_clients_take_part_independently_and_equally_often():
    drawn = masks(poisson(0.3), 20)
    number = drawn.sum(axis=1)
    assert abs(number.mean() - 6) < 5 * np.sqrt(20 * 0.3 * 0.7 / DRAWS)
    assert number.var() == pytest.approx(20 * 0.3 * 0.7, rel=0.12)  # 5 sigma; a fixed number has 0
    assert np.abs(drawn.mean(axis=0) - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / DRAWS)
    pairs = np.corrcoef(drawn.T.astype(float))[~np.eye(20, dtype=bool)]
    assert abs(pairs.mean()) < 0.01  # a fixed number of 20 has -1/19
    assert np.abs(pairs).max() < 5 / np.sqrt(DRAWS)


@pytest.mark.slow
def test_the_number_of_clients_of_a_large_population_is_binomial():
    rule, num_clients, probability = poisson(1e-3), 1_000_003, 1e-3
    draw = jax.jit(jax.vmap(lambda key: rule.draw(key, num_clients, 0)))
    cohort, is_drawn = map(np.asarray, draw(jax.random.split(make_key(0), 300)))
    assert cohort.shape[1] == rule.size(num_clients) < 1300
    assert all(len(set(ids)) == len(ids) and np.all(np.diff(ids) > 0) for ids in cohort)
    number = is_drawn.sum(axis=1)
    assert scipy.stats.kstest(number, scipy.stats.binom(num_clients, probability).cdf).pvalue > 1e-3
    # Otherwise the clients with large ids would be left out.
    assert cohort[is_drawn].mean() == pytest.approx(num_clients / 2, rel=0.01)
    assert "1000003]" not in str(jax.make_jaxpr(lambda key: rule.draw(key, num_clients, 0))(make_key(0)))


@pytest.mark.extended
def test_a_surplus_is_left_out_at_random_and_counted():
    whole, few = poisson(0.5), poisson(0.5, slots=4)
    keys = jax.random.split(make_key(3), DRAWS)
    number = masks(whole, 10).sum(axis=1)
    drawn = masks(few, 10)
    assert few.size(10) == 4
    np.testing.assert_array_equal(drawn.sum(axis=1), np.minimum(number, 4))
    left_out = np.asarray(jax.vmap(lambda key: few.overflow(key, 10))(keys))
    np.testing.assert_array_equal(left_out, np.maximum(number - 4, 0))
    assert not np.asarray(jax.vmap(lambda key: whole.overflow(key, 10))(keys)).any()
    assert np.abs(drawn.mean(axis=0) - drawn.mean()).max() < 5 * np.sqrt(0.25 / DRAWS)


def test_with_probability_one_everyone_takes_part_in_order():
    cohort, is_drawn = poisson(1.0).draw(make_key(0), 5, 0)
    assert cohort.tolist() == [0, 1, 2, 3, 4] and is_drawn.all()
    assert poisson(1.0).is_everyone
    assert not masks(poisson(1.0, slots=2), 5, 10).all()


def test_places_are_the_fewest_that_overflow_rarely_enough():
    for num_clients, probability in ((1000, 0.1), (50, 0.02), (1_000_000, 1e-3), (5, 0.9)):
        slots = min_slots(num_clients, probability, 1e-9)
        exceeds = scipy.stats.binom(num_clients, probability).sf
        assert exceeds(slots) <= 1e-9 < exceeds(slots - 1)
    assert min_slots(1000, 0.1, 1.51e-9) == 160


def test_the_expected_number_is_a_constant_of_the_rule():
    assert poisson(0.1, slots=3).expected_size(50) == pytest.approx(5)
    assert bernoulli(0.5, among=poisson(0.1)).expected_size(50) == pytest.approx(2.5)
    assert bernoulli(0.5, among=poisson(0.9, slots=1)).overflow(make_key(0), 50) > 20
