"""Laws of compressors: means over keys, contractions, error feedback, and bits."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import StageView
from fedjax_het.uplink import STAGES, drive, majority_vote, qsgd, quantize, random_k, sign, terngrad, top_k

COMPRESSORS = {
    "quantize": lambda **options: quantize(4, **options),
    "rotated": lambda **options: quantize(4, rotated=True, **options),
    "drive": drive,
    "drive_min_mse": lambda **options: drive("min_mse", **options),
    "terngrad": terngrad,
    "qsgd": qsgd,
    "top_k": lambda **options: top_k(0.25, **options),
    "random_k": lambda **options: random_k(0.25, **options),
    "sign": sign,
    "sign_three_valued": lambda **options: sign(three_valued=True, **options),
}
UNBIASED = {
    "quantize": quantize(3),
    "rotated": quantize(3, rotated=True),
    "terngrad": terngrad(clip_at=None),
    "qsgd": qsgd(2),
    "random_k": random_k(0.25),
}
UPDATE = np.random.default_rng(0).normal(size=12).astype(np.float32)
every_compressor = pytest.mark.parametrize("name", COMPRESSORS)


def as_tree(vector):
    """Two tensors, of 8 and 4 entries."""
    return {"params": {"b": jnp.asarray(vector)[8:], "w": jnp.asarray(vector)[:8].reshape(2, 4)}}


def as_vector(update):
    return np.concatenate([np.ravel(update["params"]["w"]), np.ravel(update["params"]["b"])])


def view(memory=(), own: int = 0, common: int = 0, client: int = 0):
    return StageView(None, (), memory, client, 5, make_key(own), make_key(common))


def compress(stage, vector, **keys):
    return as_vector(stage.send(as_tree(vector), view(**keys)).update)


@cache
def draws(stage):
    """What the server decodes of UPDATE under 10,000 keys, [keys, 12]."""

    def send(seed):
        update = stage.send(as_tree(UPDATE), view(own=seed, common=seed + 10_000)).update["params"]
        return jnp.concatenate([update["w"].ravel(), update["b"]])

    return np.asarray(jax.jit(jax.vmap(send))(jnp.arange(10_000)), np.float64)


@pytest.mark.extended
@pytest.mark.parametrize("name", UNBIASED)
def test_the_mean_over_keys_is_the_update(name):
    sent = draws(UNBIASED[name])
    assert len(np.unique(sent, axis=0)) > 1
    errors = np.abs(sent.mean(axis=0) - UPDATE)
    assert np.all(errors <= 5 * sent.std(axis=0) / 100 + 1e-6)


def test_the_error_of_qsgd_is_within_its_bound():
    error = np.mean(np.sum((draws(UNBIASED["qsgd"]) - UPDATE) ** 2, axis=1))
    halves = UPDATE[:8], UPDATE[8:]
    assert error <= sum(min(x.size / 4, x.size**0.5 / 2) * np.sum(x**2) for x in halves)


def test_random_entries_without_a_scale_leave_out_their_share():
    sent = draws(UNBIASED["random_k"]) / 4
    error = np.sum((sent - UPDATE) ** 2, axis=1)
    assert error.mean() == pytest.approx(0.75 * np.sum(UPDATE**2), rel=5 * error.std() / error.mean() / 100)
    assert np.all(np.count_nonzero(sent, axis=1) == 3)


@pytest.mark.slow
def test_the_largest_entries_and_scaled_signs_are_contractions():
    for x in np.random.default_rng(1).normal(size=(20, 12)):
        squared = np.sum(x**2)
        assert np.sum((compress(top_k(0.25), x) - x) ** 2) <= 0.75 * squared
        error = np.sum((compress(sign(scope="model"), x) - x) ** 2)
        assert error == pytest.approx(squared - np.sum(np.abs(x)) ** 2 / 12, rel=1e-5)
        smaller, unbiased = (np.sum((compress(drive(s, scope="model"), x) - x) ** 2) for s in ("min_mse", "unbiased"))
        assert smaller < squared and smaller < unbiased * (1 + 1e-6)


def test_drive_has_the_component_of_the_update_along_itself():
    x = np.random.default_rng(2).normal(size=12)
    assert compress(drive(scope="model"), x) @ x == pytest.approx(x @ x, rel=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["quantize", "top_k", "sign", "sign_three_valued"])
def test_what_was_sent_once_is_sent_as_it_is(name):
    stage = COMPRESSORS[name]()
    once = compress(stage, UPDATE)
    np.testing.assert_allclose(compress(stage, once, own=1), once, rtol=1e-6)


@pytest.mark.extended
@every_compressor
def test_zeros_are_sent_as_zeros_and_equal_entries_are_finite(name):
    stage = COMPRESSORS[name]()
    np.testing.assert_array_equal(compress(stage, np.zeros(12, np.float32)), 0)
    constant = compress(stage, np.full(12, 0.7, np.float32))
    assert np.isfinite(constant).all()
    if name in ("quantize", "sign", "sign_three_valued"):
        np.testing.assert_allclose(constant, 0.7, rtol=1e-6)


@pytest.mark.extended
@every_compressor
@pytest.mark.parametrize("scope", ["tensor", "model"])
def test_a_scaled_update_is_sent_scaled_and_the_same_key_gives_the_same_message(name, scope):
    stage = COMPRESSORS[name](scope=scope)
    sent = compress(stage, UPDATE, client=0)
    np.testing.assert_array_equal(compress(stage, 4 * UPDATE, client=1), 4 * sent)
    assert np.any(sent != 0)


@pytest.mark.slow
@every_compressor
def test_what_was_sent_and_the_error_add_up_to_the_updates(name):
    stage = COMPRESSORS[name](feedback="classic")
    memory, total, sent = stage.init(as_tree(UPDATE)), np.zeros(12), np.zeros(12)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(memory))
    with jax.enable_x64(True):
        memory = jax.tree.map(lambda x: x.astype(np.float64), memory)
        for number, update in enumerate(np.random.default_rng(3).normal(size=(4, 12))):
            result = stage.send(as_tree(update), view(memory, own=number))
            memory, total, sent = result.memory, total + update, sent + as_vector(result.update)
        np.testing.assert_allclose(sent + as_vector(memory), total, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("feedback", ["ef21", "ef21+"])
def test_what_was_sent_adds_up_to_what_the_client_keeps_and_nears_a_constant_update(feedback):
    stage = top_k(0.25, feedback=feedback)
    memory, sent, errors = stage.init(as_tree(UPDATE)), np.zeros(12), []
    for number in range(4):
        result = stage.send(as_tree(UPDATE), view(memory, own=number))
        memory, sent = result.memory, sent + as_vector(result.update)
        np.testing.assert_allclose(as_vector(memory), sent, rtol=1e-6)
        errors.append(np.sum((sent - UPDATE) ** 2))
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-10 < errors[-2]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("build", "variance"), [(lambda **options: qsgd(1, scope="model", **options), 12**0.5), (random_k, 11.0)]
)
def test_an_unbiased_compressor_with_feedback_is_divided_by_its_variance_and_one(build, variance):
    """It is then a contraction, and the memory stays bounded."""
    stage = build(feedback="classic")
    memory = stage.init(as_tree(UPDATE))
    sent = as_vector(stage.send(as_tree(UPDATE), view(memory)).update)
    np.testing.assert_allclose(sent, compress(build(), UPDATE) / (1 + variance), rtol=1e-6)

    def step(memory, key):
        result = stage.send(as_tree(UPDATE), view(memory)._replace(key=key))
        return result.memory, tree.norm(result.memory)

    _, norms = jax.lax.scan(step, memory, jax.random.split(make_key(0), 300))
    assert norms[200:].max() < 2 * (1 + variance) * np.linalg.norm(UPDATE)


@pytest.mark.extended
def test_every_entry_sent_is_the_update_itself():
    np.testing.assert_array_equal(compress(top_k(1.0), UPDATE), UPDATE)
    np.testing.assert_array_equal(compress(random_k(1.0), UPDATE), UPDATE)
    np.testing.assert_allclose(compress(quantize(2**16), UPDATE), UPDATE, atol=1e-4)
    np.testing.assert_allclose(compress(qsgd(2**16), UPDATE), UPDATE, atol=1e-4)


def test_clients_share_a_rotation_when_they_quantize_and_have_their_own_in_drive():
    """With 2^16 levels the rotation of `quantize` is undone; with two it shows which signs were drawn."""
    rotated = quantize(2, rotated=True, scope="model")
    ranges = [np.ptp(compress(rotated, UPDATE, own=own, common=common)) for own, common in ((0, 0), (0, 1))]
    assert ranges[0] != ranges[1]
    np.testing.assert_array_equal(compress(drive(), UPDATE, common=0), compress(drive(), UPDATE, common=1))
    assert np.any(compress(drive(), UPDATE, own=0) != compress(drive(), UPDATE, own=1))


def test_bits_are_those_of_what_is_sent():
    shapes = jax.eval_shape(lambda: as_tree(UPDATE))
    bits = {name: build().bits(math.nan, shapes) for name, build in COMPRESSORS.items()}
    assert bits["quantize"] == 12 * 2 + 2 * 64
    assert bits["rotated"] == 12 * 2 + 2 * 64  # 8 and 4 are powers of two
    assert quantize(4, rotated=True, scope="model").bits(0.0, shapes) == 16 * 2 + 64
    assert bits["drive"] == 12 + 2 * 32 and drive(scope="model").bits(0.0, shapes) == 16 + 32
    assert bits["terngrad"] == pytest.approx(12 * math.log2(3) + 2 * 32)
    assert bits["qsgd"] == 2 * 32 + 12 * (1 + 3)
    assert bits["top_k"] == 3 * (32 + 4) and bits["random_k"] == 3 * 32
    assert bits["sign"] == 12 + 2 * 32 and sign(scaled=False).bits(0.0, shapes) == 12
    assert bits["sign_three_valued"] == pytest.approx(12 * math.log2(3) + 2 * 32)
    assert majority_vote(1.0).bits(0.0, shapes) == 12
    assert top_k(0.25, feedback="ef21+").bits(0.0, shapes) == 3 * (32 + 4) + 1


def test_more_levels_and_entries_take_more_bits():
    shapes = {"params": {"w": jax.ShapeDtypeStruct((1000,), np.float32)}}
    count = lambda stage: stage.bits(0.0, shapes)  # noqa: E731
    for stages in ([quantize(x) for x in (2, 3, 16)], [qsgd(x) for x in (1, 2, 16)], [top_k(x) for x in (0.01, 0.1)]):
        bits = list(map(count, stages))
        assert bits == sorted(set(bits))


def test_the_names_of_all_stages_are_registered():
    assert {"quantize", "drive", "terngrad", "qsgd", "top_k", "random_k", "sign", "majority_vote"} <= set(STAGES)
    assert all(stage.__name__ == name for name, stage in STAGES.items())
