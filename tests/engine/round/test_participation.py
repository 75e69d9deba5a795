import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.engine.round import participation
from fedjax_het.engine.round.participation import Told, cyclic, waiting
from fedjax_het.errors import InputError


def test_full_participation_selects_every_client():
    cohort, is_available = participation.full().draw(make_key(0), 4, 0)
    assert cohort.tolist() == [0, 1, 2, 3] and is_available.all()


def test_uniform_cohorts_have_distinct_clients_and_reach_every_client():
    draws = [participation.uniform(3).draw(make_key(k), 8, 0)[0].tolist() for k in range(60)]
    assert all(sorted(set(draw)) == draw and len(draw) == 3 for draw in draws)
    counts = np.bincount(np.concatenate(draws), minlength=8)
    assert counts.min() > 8


@pytest.mark.extended
def test_the_availability_of_a_client_does_not_depend_on_the_cohort():
    few, all_there = participation.bernoulli(0.5, among=participation.uniform(5)), participation.bernoulli(0.5)
    key = make_key(7)
    cohort, answers = few.draw(key, 9, 0)
    np.testing.assert_array_equal(answers, np.asarray(all_there.draw(key, 9, 0)[1])[np.asarray(cohort)])


@pytest.mark.parametrize(("probability", "expected"), [(1e-9, 0.0), (0.3, 0.3), (1.0, 1.0)])
def test_clients_are_available_with_the_requested_probability(probability, expected):
    answers = participation.bernoulli(probability).draw(make_key(1), 2000, 0)[1]
    assert float(answers.mean()) == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("size", [0, 6])
def test_a_cohort_size_out_of_range_is_refused(size):
    with pytest.raises(InputError, match=f"expected 1 to 5, the number of clients, got {size}"):
        participation.uniform(size).size(5)


@pytest.mark.parametrize("probability", [0.0, 1.2])
def test_a_probability_out_of_range_is_refused(probability):
    with pytest.raises(InputError, match="probability"):
        participation.bernoulli(probability)


def test_a_cohort_of_a_million_clients_is_uniform_and_distinct():
    """Ids are distinct, in range and equally likely, and the program has no shuffle."""
    num_clients, count = 1_000_003, 1000
    draw = jax.jit(jax.vmap(lambda key: participation.uniform(count).draw(key, num_clients, 0)[0]))
    drawn = np.asarray(draw(jax.random.split(make_key(0), 50)))
    assert all(len(set(cohort)) == count for cohort in drawn.tolist())
    assert drawn.min() >= 0 and drawn.max() < num_clients
    observed = np.histogram(drawn, bins=100, range=(0, num_clients))[0]
    expected = drawn.size / 100
    assert np.sum((observed - expected) ** 2 / expected) < 150  # chi-squared, 99 degrees of freedom: p about 0.001
    assert len(np.unique(drawn)) > 0.97 * drawn.size  # by chance two of the fifty cohorts share few


def test_drawing_a_cohort_allocates_no_array_over_all_clients():
    program = str(jax.make_jaxpr(lambda key: participation.uniform(10).draw(key, 1_000_003, 0))(make_key(0)))
    assert "1000003]" not in program


@pytest.fixture
def trace_file(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("client,start,end\n0,0,2\n1,1,4\n3,0,4\n0,3,4")
    return str(path)


def test_a_trace_asks_the_clients_that_are_available(trace_file):
    rule = participation.trace(trace_file)
    assert rule.size(5) == 5 and rule.is_everyone
    available = [np.flatnonzero(rule.draw(make_key(0), 5, r)[1]).tolist() for r in range(5)]
    assert available == [[0, 3], [0, 1, 3], [1, 3], [0, 1, 3], []]
    again = participation.trace(trace_file, period=4)
    assert np.flatnonzero(again.draw(make_key(0), 5, 7)[1]).tolist() == [0, 1, 3]


def test_a_trace_draws_uniformly_from_the_available_clients(trace_file):
    rule = participation.trace(trace_file, cohort_size=2)
    counts = np.zeros(5)
    for seed in range(90):
        cohort, is_available = rule.draw(make_key(seed), 5, 1)
        assert is_available.all() and len(set(cohort.tolist())) == 2
        counts[np.asarray(cohort)] += 1
    assert set(np.flatnonzero(counts)) == {0, 1, 3}
    assert np.all(np.abs(counts[[0, 1, 3]] - 60) < 5 * (90 * 2 / 9) ** 0.5)
    cohort, is_available = rule.draw(make_key(0), 5, 4)
    assert len(cohort) == 2 and not is_available.any()


@pytest.mark.parametrize(
    ("text", "period", "message"),
    [
        ("client,start,end\n0,2,2", None, "line 2: expected client >= 0 and 0 <= start < end, got 0, 2, 2"),
        ("client,start,end\n0,2,9", 4, "with end at most 4, the period"),
        ("client,start\n0,2", None, "no column end"),
        ("client,start,end\n0,1.5,2", None, "line 2: start must be a whole number, and is '1.5'"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(tmp_path, text, period, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        participation.trace(str(path), period=period)


def test_a_trace_of_clients_that_do_not_exist_is_refused(trace_file):
    with pytest.raises(InputError, match="there is no client 3"):
        participation.trace(trace_file).size(3)
    with pytest.raises(InputError, match="cannot read"):
        participation.trace("/nowhere/trace.csv")


# ---- a distance between participations -------------------------------------------------------------------------------
def test_cyclic_groups_take_turns_and_absent_places_hold_other_clients():
    rule, seen = cyclic(3, group_seed=1), []
    assert rule.size(7) == 3 and rule.expected_size(7) == pytest.approx(7 / 3)
    for number in range(6):
        cohort, is_here = (np.asarray(x) for x in rule.draw(make_key(number), 7, number))
        assert len(set(cohort.tolist())) == 3 and list(cohort) == sorted(cohort)
        seen.append(set(cohort[is_here].tolist()))
    assert seen[:3] == seen[3:] and set().union(*seen[:3]) == set(range(7)) and sum(map(len, seen[:3])) == 7
    with pytest.raises(InputError, match="8 groups of 7 clients"):
        cyclic(8).size(7)


def test_waiting_clients_are_drawn_again_only_after_their_wait_and_all_of_them_are_drawn():
    rule, num_clients, cohorts = waiting(2, separation=3), 8, []
    state = rule.init(np.ones(num_clients, int), {}, make_key(0))
    draw = jax.jit(lambda number, state: rule.draw(make_key(number), num_clients, number, state))
    for number in range(200):
        cohort, is_here = draw(number, state)
        assert np.all(is_here)
        state = rule.update(state, Told(jnp.asarray(number + 1), cohort, is_here, None))
        cohorts.append(set(np.asarray(cohort).tolist()))
        assert all(not cohorts[-1] & before for before in cohorts[-3:-1])
    counts = np.bincount([client for cohort in cohorts for client in cohort], minlength=num_clients)
    assert counts.min() >= 35 and counts.max() <= 65 and len({frozenset(cohort) for cohort in cohorts}) > 10
    with pytest.raises(InputError, match="need 9 clients, and there are 8"):
        waiting(3, 3).size(num_clients)
