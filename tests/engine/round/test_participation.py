import jax
import numpy as np
import pytest

from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError


def test_full_participation_selects_every_client():
    cohort, is_available = participation.full().draw(jax.random.key(0), 4, 0)
    assert cohort.tolist() == [0, 1, 2, 3] and is_available.all()


def test_uniform_cohorts_have_distinct_clients_and_reach_every_client():
    draws = [participation.uniform(3).draw(jax.random.key(k), 8, 0)[0].tolist() for k in range(60)]
    assert all(sorted(set(draw)) == draw and len(draw) == 3 for draw in draws)
    counts = np.bincount(np.concatenate(draws), minlength=8)
    assert counts.min() > 8


def test_the_availability_of_a_client_does_not_depend_on_the_cohort():
    few, all_there = participation.bernoulli(0.5, among=participation.uniform(5)), participation.bernoulli(0.5)
    key = jax.random.key(7)
    cohort, answers = few.draw(key, 9, 0)
    np.testing.assert_array_equal(answers, np.asarray(all_there.draw(key, 9, 0)[1])[np.asarray(cohort)])


@pytest.mark.parametrize(("probability", "expected"), [(0.0, 0.0), (0.3, 0.3), (1.0, 1.0)])
def test_clients_are_available_with_the_requested_probability(probability, expected):
    answers = participation.bernoulli(probability).draw(jax.random.key(1), 2000, 0)[1]
    assert float(answers.mean()) == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("size", [0, 6])
def test_a_cohort_size_out_of_range_is_refused(size):
    with pytest.raises(InputError, match=f"between 1 and the number of clients, 5; it is {size}"):
        participation.uniform(size).size(5)


def test_a_probability_out_of_range_is_refused():
    with pytest.raises(InputError, match="probability"):
        participation.bernoulli(1.2)


def test_a_cohort_of_a_million_clients_is_uniform_and_distinct():
    """All different, all in range, every id as likely as another, and no trace of the shuffle in the program."""
    num_clients, count = 1_000_003, 1000
    draw = jax.jit(jax.vmap(lambda key: participation.uniform(count).draw(key, num_clients, 0)[0]))
    drawn = np.asarray(draw(jax.random.split(jax.random.key(0), 50)))
    assert all(len(set(cohort)) == count for cohort in drawn.tolist())
    assert drawn.min() >= 0 and drawn.max() < num_clients
    observed = np.histogram(drawn, bins=100, range=(0, num_clients))[0]
    expected = drawn.size / 100
    assert np.sum((observed - expected) ** 2 / expected) < 150  # chi-squared, 99 degrees of freedom: p about 0.001
    assert len(np.unique(drawn)) > 0.97 * drawn.size  # by chance two of the fifty cohorts share few


def test_drawing_a_cohort_allocates_no_array_over_all_clients():
    program = str(jax.make_jaxpr(lambda key: participation.uniform(10).draw(key, 1_000_003, 0))(jax.random.key(0)))
    assert "1000003]" not in program
