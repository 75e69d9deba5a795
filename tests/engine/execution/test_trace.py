"""Errors for slots that do not fit together, before anything runs."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import data, participation, sharing, uplink
from fedjax_het.algorithm import Summary
from fedjax_het.client.gradients import control_variate_gradient
from fedjax_het.client.local_updates import sgd
from fedjax_het.data import federate
from fedjax_het.data.assembly import assemble
from fedjax_het.data.partition import iid
from fedjax_het.engine import Simulation
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import fltrust, mean
from fedjax_het.server.weightings import stateless
from tests.harness import algorithm, federation, model


def build(change: dict, norm: str = "none", **options):
    return Simulation(replace(algorithm("fedavg", **options), **change), model(norm), federation(), rounds=1)


def contrastive(forward):
    return jnp.sum(forward.view.memory["previous"]["w"])


def test_a_term_that_reads_a_missing_memory_is_refused_with_the_slot_to_add():
    with pytest.raises(InputError) as error:
        build({"objective": (contrastive,)})
    assert str(error.value) == (
        "objective term 'contrastive' reads memory['previous'], but this algorithm fills only: nothing. "
        'Add memory={"previous": ...} to the Algorithm.'
    )


def test_a_gradient_rule_that_reads_an_unpublished_value_is_refused():
    with pytest.raises(InputError, match=r"the local update reads published\['control'\]"):
        build({"local_update": sgd(gradient=control_variate_gradient())})


def test_a_report_that_reads_a_missing_answer_is_refused():
    with pytest.raises(InputError, match=r"report 'gap' reads answers\['loss'\]"):
        build({"reports": {"gap": lambda problem, view: view.answers["loss"]}})


def test_a_report_that_reads_test_examples_is_refused():
    with pytest.raises(InputError, match=r"report 'cheating' reads data\.test, but test examples take no part"):
        build({"reports": {"cheating": lambda problem, view: view.data.test.count}})


def test_an_aggregator_that_reads_a_missing_report_is_refused():
    by_loss = stateless(lambda view: view.uploads.reports["loss"])
    with pytest.raises(InputError, match=r"the aggregator reads reports\['loss'\]"):
        build({"aggregator": mean(by_loss)})


def test_a_summary_of_a_missing_report_is_refused():
    summary = Summary(lambda *_: jnp.zeros(()), lambda old, new, view: old)
    with pytest.raises(InputError, match=r"published\['prototypes'\] summarizes a value no client reports"):
        build({"published": {"prototypes": summary}})


def test_a_summary_that_changes_its_shape_is_refused():
    summary = Summary(lambda *_: jnp.zeros(()), lambda old, reports, view: reports.tensors())
    report = {"n": lambda problem, view: view.num_steps}
    with pytest.raises(InputError, match=r"changes the shape of its own state: .*published"):
        build({"published": {"n": summary}, "reports": report})


def test_a_summary_that_returns_its_stack_is_refused():
    summary = Summary(lambda *_: jnp.zeros(()), lambda old, reports, view: reports)
    report = {"n": lambda problem, view: view.num_steps}
    with pytest.raises(InputError, match=r"published\['n'\] returns a stack .*tensors"):
        build({"published": {"n": summary}, "reports": report})


@pytest.mark.extended
def test_batches_of_one_example_are_refused_with_batch_norm_only():
    with pytest.raises(InputError, match=r"batch_size: batches of one example.*norm_0"):
        build({}, norm="batch", batch_size=1)
    assert build({}, norm="none", batch_size=1).cost.num_clients == 5


@pytest.mark.extended
def test_amplitude_normalisation_is_refused_for_images_with_negative_means():
    pixels = (np.random.default_rng(0).random((40, 6, 6, 1)) - 0.5).astype(np.float32)
    floats = federate(assemble("floats", pixels, np.arange(40) % 3), iid(), 5)
    standardised = data.toy(5, image=(6, 6, 1), standardise=True)
    for chosen, message in (
        (standardised, "standardised images.*Set standardise=False"),
        (floats, "the images' means"),
    ):
        with pytest.raises(InputError, match=f"standardise: {message}.*band=None"):
            Simulation(algorithm("harmofl"), model("none"), chosen, rounds=1)
    assert Simulation(algorithm("harmofl", band=None), model("none"), standardised, rounds=1).rounds == 1


def test_a_sharing_rule_that_matches_no_leaf_is_refused():
    with pytest.raises(InputError, match=r"sharing: no leaf.*params/head"):
        build({"sharing": sharing.personal("params/head/*")})


@pytest.mark.parametrize("norm", ["none", "batch_stat", "group"])
def test_fedbn_is_refused_without_batch_norms_that_have_leaves(norm):
    """It would train exactly like FedAvg."""
    with pytest.raises(InputError, match=r"sharing: nothing would be personal: .*of class .*Dense.*norm='batch'"):
        Simulation(algorithm("fedbn"), model(norm), federation(), rounds=1)


def test_an_option_that_names_a_client_outside_the_federation_is_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"aggregator: root: there is no client 99\. The 5 clients have the ids 0 to 4"
    ):
        build({"aggregator": fltrust(root=99)})
    with pytest.raises(InputError, match="uplink: clients: there is no client 5"):
        build({"uplink": (uplink.attack_sign_flip(clients=(5, 1)),)})
    (tmp_path / "trace.csv").write_text("client,start,end\n7,0,9\n")
    drawn = participation.trace(str(tmp_path / "trace.csv"))
    with pytest.raises(InputError, match=r"trace\.csv': there is no client 7"):
        Simulation(algorithm("fedavg"), model(), federation(), rounds=1, participation=drawn)


@pytest.mark.parametrize(
    "change",
    [{"aggregator": fltrust(root=2)}, {"uplink": (uplink.attack_mimic(clients=(0, 2)),)}],
    ids=["root", "attacker"],
)
def test_an_option_that_names_a_client_without_training_examples_is_refused(change):
    whole = federation()
    train = whole.data.train._replace(count=np.array(whole.data.train.count) * (np.arange(5) != 2))
    clients = replace(whole, data=whole.data._replace(train=train))
    chosen = replace(algorithm("fedavg"), **change)
    with pytest.raises(InputError, match="client 2 has no training example"):
        Simulation(chosen, model("none"), clients, rounds=1)
