"""Public examples: how they are chosen, and where they are refused."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.data import federate, iid
from fedjax_het.engine.round.program import make_round
from fedjax_het.errors import InputError
from fedjax_het.placeholders import MissingSlotError
from tests.harness import TINY, algorithm, federation, federation_of, model

DATASET = fh.data.assemble("x", np.arange(120, dtype=np.float32)[:, None], np.arange(120) % 3, class_names="abc")


def test_a_fraction_of_the_training_examples_is_public_and_no_clients():
    whole = federate(DATASET, iid(), 4, public=0.25, test_fraction=0.2)
    public = set(whole.examples.public.inputs.ravel().tolist())
    assert len(public) == 24
    owned = [
        int(x) for rows in whole.data[1:4] for index, n in zip(rows.index, rows.count, strict=True) for x in index[:n]
    ]
    held = {int(x) for x in whole.test.index}
    assert not public & set(owned) and not public & held and len(public) + len(owned) + len(held) == 120
    counts = np.bincount(DATASET.labels[[int(x) for x in public]])
    assert counts.tolist() == [8, 8, 8]


def test_the_choice_depends_on_the_seed_and_changes_the_fingerprint():
    first, again, other = (federate(DATASET, iid(), 4, public=0.25, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert federate(DATASET, iid(), 4).examples.public is None
    with_more = first.with_public(np.concatenate([first.examples.public.inputs, [[7.0]]]).astype(np.float32))
    assert with_more.fingerprint != first.fingerprint


def test_another_data_set_may_be_public_if_its_inputs_have_the_same_shape():
    other = fh.data.assemble("y", np.ones((5, 1), np.float32), np.arange(5) % 2, class_names="ab")
    assert len(federate(DATASET, iid(), 4, public=other).examples.public.order) == 5
    wide = fh.data.assemble("z", np.ones((5, 2), np.float32), np.arange(5) % 2, class_names="ab")
    with pytest.raises(InputError, match=r"^public: inputs of z have shape \(2,\).*Give data with the same shape"):
        federate(DATASET, iid(), 4, public=wide)
    with pytest.raises(InputError, match=r"^public: 0\.001 of 96 examples is none"):
        federate(DATASET, iid(), 4, public=0.001)


def test_public_examples_are_refused_without_a_reader_and_readers_without_them():
    with pytest.raises(InputError, match=r"^public: has no effect"):
        fh.Simulation(algorithm("fedavg"), model("none"), federation_of("feddf"), rounds=1)
    with pytest.raises(InputError, match=r"^public: the algorithm reads public examples, and the federation has none"):
        fh.Simulation(algorithm("feddf"), model("none"), federation(), rounds=1)
    with pytest.raises(InputError, match="sample_size: 50 of 32 public examples"):
        fh.Simulation(algorithm("fedmd", sample_size=50), model("none"), federation_of("fedmd"), rounds=1)
    with pytest.raises(InputError, match="the server runs the whole model"):
        chosen = replace(algorithm("feddf"), sharing=fh.sharing.batch_norms)
        fh.Simulation(chosen, model("batch"), federation_of("feddf"), rounds=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["feddf", "fedmd"])
def test_public_examples_stay_on_the_device_with_streaming_and_are_no_traffic(name):
    found = []
    for examples in ("device", "stream"):
        run = fh.Simulation(
            algorithm(name), model("none"), federation_of(name), rounds=2, examples=examples, cohort_size=2
        )
        state, metrics = run.advance(run.start(), 2)
        assert run.cost.held_bytes["public examples"] == 32 * (36 + 4)
        found.append((state.server.shared, metrics.loss))
        if name == "feddf":
            plain = fh.Simulation(fh.algorithms.fedavg(**TINY), model("none"), federation(), rounds=2, cohort_size=2)
            assert (run.cost.bytes_up, run.cost.bytes_down) == (plain.cost.bytes_up, plain.cost.bytes_down)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *found)


def test_labels_of_public_batches_cannot_be_read():
    whole = federation_of("feddf")
    round = make_round(algorithm("feddf"), model("none"), 5, prepare=whole.prepare)
    batch = round.problem.public_batch(whole.examples.public, 30, 4)
    first = round.problem.prepare(whole.examples.public.inputs)[0]
    assert batch.inputs.shape[0] == 4 and np.allclose(batch.inputs[2], first)
    with pytest.raises(MissingSlotError, match="reads labels of public examples"):
        jnp.add(batch.labels, 1)
