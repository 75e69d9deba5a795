"""Records hold arrays of the shapes and kinds that their annotations state, through the rounds of every algorithm."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from beartype.roar import BeartypeDoorHintViolation
from jaxtyping import TypeCheckError

from fedjax_het import aggregators, data, geometry
from fedjax_het._internal.keys import make_key
from fedjax_het.client import objectives
from fedjax_het.engine.round.client_step import cohort_data
from fedjax_het.engine.round.participation import uniform
from fedjax_het.engine.round.program import make_round
from fedjax_het.models import lstm, mlp, unet
from fedjax_het.server.weightings import WEIGHTINGS
from fedjax_het.types import Batch, ClientData, Examples, Rows
from tests.harness import algorithm, every_algorithm_slowly, federation, federation_of, model, network_of
from tests.record_shapes import check_shapes, checked, with_checked_slots, with_checked_weights

pytestmark = pytest.mark.extended


def trace_checked(algorithm, model, federation):
    """Trace a round of two clients with checks of all that slots are given and return, and compile nothing."""
    checked_algorithm = with_checked_slots(algorithm)
    round = make_round(
        checked_algorithm,
        model,
        federation.num_clients,
        participation=uniform(2),
        prepare=federation.prepare,
    )

    def two_rounds(key, data):
        state = checked(round.init)(key, data)
        for _ in range(2):
            cohort = checked(round.draw)(key, state.server.round)
            check_shapes((cohort, cohort_data(data, cohort)))
            state, metrics, messages = checked(round.step_with_messages)(state, data, key)
        return metrics, messages

    jax.eval_shape(two_rounds, make_key(0), federation.data)


@every_algorithm_slowly
def test_every_slot_is_given_and_returns_the_shapes_that_are_annotated(name):
    trace_checked(algorithm(name), network_of(name), federation_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "fedld", pytest.param("harmofl", marks=pytest.mark.slow)])
def test_records_of_masks_have_the_shapes_that_are_annotated(name):
    masks = data.toy(num_clients=3, num_classes=2, image=(16, 16, 1), masks=True, examples_per_client=(12, 16))
    trace_checked(algorithm(name), unet(2, width=1 / 16), masks)


def test_records_of_sequences_and_of_survival_have_the_shapes_that_are_annotated():
    rng, labels = np.random.default_rng(0), {"every": np.full((30, 5), -1, np.int32), "last": np.zeros(30, np.int32)}
    options = {"domains": np.arange(30) % 3, "domain_names": "abc"}
    for outputs, values in labels.items():
        tokens = data.assemble("x", rng.integers(0, 4, (30, 5)).astype(np.int8), values, class_names="abcd", **options)
        federation = data.federate(tokens, data.by_domain(), 0)
        trace_checked(algorithm("fedavg"), lstm(4, hidden=(3,), outputs=outputs), federation)
    times = data.assemble("x", rng.normal(size=(30, 2)), np.full(30, 2.5, np.float32), class_names="ab", **options)
    survival = replace(algorithm("fedavg"), objective=(objectives.cox(),))
    trace_checked(survival, mlp(2, hidden=()), data.federate(times, data.by_domain(), 0))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_weights_are_one_number_per_client_of_the_cohort(weighting):
    mean = aggregators.mean(with_checked_weights(WEIGHTINGS[weighting]))
    trace_checked(replace(algorithm("fedavg"), aggregator=mean), model(), federation())


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (Batch(jnp.ones((4, 3)), jnp.ones(4, int), jnp.ones(3)), "Batch.mask"),
        (Batch(jnp.ones((4, 3)), jnp.ones((3, 2)), jnp.ones(4)), "Batch.labels"),
        (Rows(np.zeros((5, 9), np.int32), np.zeros(4, np.int32)), "Rows.count"),
        (Examples(np.zeros((5, 2, 2, 1)), np.zeros((4, 2, 2), np.int32)), "Examples.labels"),
    ],
)
def test_a_field_of_another_shape_or_kind_is_refused_by_name(record, field):
    with pytest.raises(BeartypeDoorHintViolation, match=field):
        check_shapes({"data": (record,)})


def test_rows_of_a_clients_splits_may_have_different_capacities():
    rows = [Rows(np.zeros((5, capacity), np.int32), np.zeros(5, np.int32)) for capacity in (9, 2, 4)]
    check_shapes(ClientData(Examples(np.zeros((7, 2)), np.zeros(7, np.int32)), *rows))


def test_functions_of_the_gram_matrix_check_their_shapes_in_tests():
    with pytest.raises(TypeCheckError, match="geometry"):
        geometry.agreement(jnp.eye(3), jnp.ones(4, bool))
