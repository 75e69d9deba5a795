"""Laws of FedRD and FedGA, whose server weighs clients by measurements on their own held-out examples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.client.measures import mean_loss
from fedjax_het.engine.round import participation
from fedjax_het.types import Broadcast, ClientView
from tests.harness import compose, difference, federation, is_equal, run


@functools.cache
def federation_with_validation():
    """A federation in which each client holds out examples, with uneven classes."""
    return federation(valid_fraction=0.3, label_shift=0.6)


@functools.cache
def compose_cached(name: str, **options):
    """A round and its compiled `step_with_messages`, compiled once for equal options."""
    round = compose(name, norm="none", options=options)
    return round, jax.jit(round.step_with_messages)


def run_with_messages(name: str, rounds: int, **options):
    """([(state before, messages)] of every round, the last state)."""
    round, explain = compose_cached(name, **options)
    key, data = make_key(0), federation_with_validation().data
    state, chapters = round.init(key, data), []
    for _ in range(rounds):
        after, _, said = explain(state, data, key)
        chapters.append((state, said))
        state = after
    return chapters, state


def after(name: str, rounds: int = 2, **options):
    return run_with_messages(name, rounds, **options)[1].server.shared


fedavg = functools.partial(after, "fedavg")


def losses(name: str, variables) -> np.ndarray:
    """Losses of these shared variables on every client's validation examples."""

    def update(rows):
        own = data._replace(train=rows[0], valid=rows[1], test=rows[2])
        received = Broadcast(jnp.zeros((), int), variables, {})
        view = ClientView(received, {}, {}, own, variables, variables, (), {}, None)
        return mean_loss("start")(compose_cached(name)[0].problem, view)

    data = jax.tree.map(jnp.asarray, federation_with_validation().data)
    return np.asarray(jax.vmap(update)((data.train, data.valid, data.test)))


@pytest.mark.extended
def test_fedrd_without_its_parts_is_fedavg():
    assert is_equal(after("fedrd", debiased=False, guided=False), fedavg(epochs=5))


@pytest.mark.extended
def test_with_one_epoch_the_debiased_classifier_has_no_effect():
    assert difference(after("fedrd", guided=False, epochs=1, few_shot=(1,)), fedavg()) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("lambda_every", ["epoch", "step", "prev_round"])
def test_the_debiased_classifier_changes_the_model(lambda_every):
    ours = after("fedrd", guided=False, lambda_every=lambda_every, few_shot=(1,))
    assert 1e-5 < difference(fedavg(epochs=5), ours) < 0.5


@pytest.mark.extended
def test_guided_aggregation_is_another_average_of_the_same_models():
    [(before, said)], state = run_with_messages("fedrd", 1, debiased=False)
    ours = state.server.shared
    own = jax.tree.map(lambda start, update: start + update, before.server.shared, said.uploads.update)
    low, high = (jax.tree.map(lambda x, f=f: f(np.asarray(x), axis=0), own) for f in (np.min, np.max))
    inside = jax.tree.map(
        lambda a, b, c: np.all((np.asarray(b) >= a - 1e-6) & (np.asarray(b) <= c + 1e-6)), low, ours, high
    )
    assert all(jax.tree.leaves(inside))
    assert difference(ours, fedavg(rounds=1, epochs=5)) > 1e-5


@pytest.mark.extended
def test_the_reported_gain_is_measured_on_validation_examples():
    [(before, said)], _ = run_with_messages("fedrd", 1)
    start = losses("fedrd", before.server.shared)
    trained = jax.tree.map(lambda w, u: w + u[2], before.server.shared, said.uploads.update)
    assert float(said.uploads.reports["gap"][2]) == pytest.approx(start[2] - losses("fedrd", trained)[2], abs=1e-5)


@pytest.mark.slow
def test_the_extra_model_of_the_released_code_shrinks_the_result():
    shrunk, ours = after("fedrd", rounds=1, official_n_extra=1), after("fedrd", rounds=1)
    lengths = [np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(tree))) for tree in (shrunk, ours)]
    assert lengths[0] < 0.95 * lengths[1]


@pytest.mark.slow
def test_fedrd_can_keep_its_optimizer_state_between_rounds():
    options = {"momentum": 0.9, "weight_decay": 1e-3}
    afresh, kept = (after("fedrd", reset_optimizer=reset, **options) for reset in (True, False))
    assert difference(afresh, kept) > 1e-5


@pytest.mark.extended
def test_fedga_with_a_step_of_zero_is_fedavg_with_uniform_weights():
    assert difference(after("fedga", step=0.0), fedavg(weighting="uniform")) < 1e-6


@pytest.mark.extended
def test_fedga_agrees_with_uniform_fedavg_in_the_first_round_only():
    assert difference(after("fedga", rounds=1), fedavg(rounds=1, weighting="uniform")) < 1e-6
    assert difference(after("fedga"), fedavg(weighting="uniform")) > 1e-5


@pytest.mark.extended
def test_fedgas_gap_is_the_loss_of_the_average_less_that_of_the_clients_model():
    [(first, said), (second, said_next)], _ = run_with_messages("fedga", 2)
    assert not np.any(said.uploads.reports["gap"])
    trained = jax.tree.map(lambda w, u: w + u[3], first.server.shared, said.uploads.update)
    gap = losses("fedga", second.server.shared)[3] - losses("fedga", trained)[3]
    assert float(said_next.uploads.reports["gap"][3]) == pytest.approx(gap, abs=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("options", [{}, {"preset": "released"}])
def test_fedgas_weights_are_shares_under_partial_participation(options):
    round = compose("fedga", norm="none", options={"step": 2.0, **options}, participation=participation.uniform(3))
    state, _ = run(round, rounds=6, data=federation_with_validation().data)
    held = state.server.aggregator
    weights = np.where(held.has_reported, held.weights, 1 / 5)
    assert np.all(weights >= 0) and weights.sum() == pytest.approx(1, abs=1e-5)
    assert np.ptp(weights) > 0.01
