"""The loss that a client reports, at four moments."""

import jax
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.client.measures import training_loss
from fedjax_het.client.measures._losses import EVALUATED, MEASURED
from fedjax_het.errors import InputError
from tests.harness import compose, federation

pytestmark = pytest.mark.extended


def report_loss(moment: str, batch_size: int = 50, **options):
    round = compose(
        "fedavg", norm="none", options=options, change={"reports": {"loss": training_loss(moment, batch_size)}}
    )
    state = round.init(make_key(0), federation().data)
    _, metrics, said = jax.jit(round.step_with_messages)(state, federation().data, make_key(0))
    return np.asarray(said.uploads.reports["loss"]), metrics, np.asarray(said.uploads.num_examples)


@pytest.mark.slow
def test_with_a_learning_rate_of_zero_the_losses_of_all_moments_agree():
    losses = [report_loss(moment, learning_rate=0.0)[0] for moment in MEASURED | EVALUATED]
    for other in losses[1:]:
        np.testing.assert_allclose(other, losses[0], rtol=1e-5)


@pytest.mark.slow
def test_training_lowers_the_loss():
    before, late, after = (
        report_loss(moment, learning_rate=0.1, epochs=5)[0].mean()
        for moment in ("pre_eval", "last_epoch_mean", "post_eval")
    )
    assert after < late < before


def test_the_mean_over_the_round_is_the_loss_in_the_metrics():
    losses, metrics, counts = report_loss("round_mean")
    assert metrics.loss == pytest.approx(np.average(losses, weights=counts), rel=1e-5)


def test_the_batch_size_does_not_change_an_evaluated_loss():
    np.testing.assert_allclose(report_loss("post_eval", 3)[0], report_loss("post_eval", 64)[0], rtol=1e-5)


def test_an_unknown_moment_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'post_eval'"):
        training_loss("posteval")
