"""Learned context of CLIP's texts: the order of classes, initial tokens, places, refusals, and rounds of PromptFL."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models import clip, context, low_rank_context, save_state_dict
from fedjax_het.models._clip import make_towers
from fedjax_het.models._context import _make_room
from fedjax_het.models._personal_context import transport_plan
from fedjax_het.models._vision_names import CLIP_NAMES
from fedjax_het.types import Context
from tests.harness import CLIP, difference, is_equal, make_prompts, network_of

KEY = make_key(0)
SIZES = {name: value for name, value in CLIP.items() if name != "texts"}
IMAGES = jax.random.normal(KEY, (4, 6, 6, 1))
PROMPTS = [[1, 5, 9, 2, 15], [1, 6, 2, 15, 0], [1, 7, 2, 15, 0]]
FEDERATION = fh.data.toy(num_clients=2, num_classes=3, image=(6, 6, 1))
TRAINING = {"learning_rate": 0.1, "batch_size": 8}


def logits(model, variables, images=IMAGES):
    run = Context(jnp.ones(len(images)), jnp.int32(0), KEY, False)
    (features, _), _ = model.encode(variables, images, run)
    return model.classify(variables["params"], features)


def build(prompts=PROMPTS, texts="tower", **options):
    return clip(3, prompts=prompts, texts=texts, **SIZES | options)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"position": "middle"}, {"per_class": True}], ids=str)
def test_the_order_of_classes_permutes_the_logits(options):
    model, changed = (context(3, **options)(build(prompts)) for prompts in (PROMPTS, PROMPTS[::-1]))
    variables = model.init(KEY, IMAGES)
    vectors = jax.random.normal(KEY, variables["params"]["context"].shape)
    other = vectors[::-1] if vectors.ndim == 3 else vectors
    first, second = ({"params": {**variables["params"], "context": value}} for value in (vectors, other))
    ours = logits(model, first)
    np.testing.assert_allclose(ours[:, ::-1], logits(changed, second), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours[:2], logits(model, first, IMAGES[:2]), rtol=1e-5, atol=1e-5)
    assert np.abs(ours - ours[:, ::-1]).max() > 1e-3


@pytest.mark.slow
def test_the_vectors_begin_as_the_embeddings_of_initial_tokens():
    model, written = context(initial=(7, 8))(build()), build([[1, 7, 8, *prompt[1:]] for prompt in PROMPTS])
    variables = model.init(KEY, IMAGES)
    own = {name: leaf for name, leaf in variables["params"].items() if name != "context"}
    np.testing.assert_allclose(logits(model, variables), logits(written, {"params": own}), rtol=1e-5, atol=1e-5)


@pytest.mark.extended
def test_the_tower_classifies_as_the_head_that_it_makes():
    head, tower = build(texts="head"), build()
    start = tower.init(KEY, IMAGES)
    texts = make_towers(3, None, SIZES)[1].apply({"params": start["params"]["text"]}, np.asarray(PROMPTS))
    own = {name: leaf for name, leaf in start["params"].items() if name != "text"}
    own["classifier"] = {"kernel": texts.T}
    np.testing.assert_allclose(logits(tower, start), logits(head, {"params": own}), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("position", "places", "texts"),
    [
        ("end", [[1, 2, 3]] * 2, [[1, 1, 1, 1, 5, 9, 2, 15], [1, 1, 1, 1, 6, 2, 15, 0]]),
        ("middle", [[1, 4, 5], [1, 3, 4]], [[1, 1, 5, 9, 1, 1, 2, 15], [1, 1, 6, 1, 1, 2, 15, 0]]),
        ("front", [[3, 4, 5], [2, 3, 4]], [[1, 5, 9, 1, 1, 1, 2, 15], [1, 6, 1, 1, 1, 2, 15, 0]]),
    ],
)
def test_vectors_stand_before_around_or_behind_the_name(position, places, texts):
    tower = make_towers(2, None, SIZES)[1]
    found = _make_room(np.asarray([[1, 5, 9, 2, 15, 0, 0], [1, 6, 2, 15, 0, 0, 0]]), tower, 3, position)
    assert [part.tolist() for part in found] == [texts, places]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("network", "adapt", "message"),
    [
        (fh.models.mlp(3), context(), "the model has no text tower without context"),
        (build(texts="head"), context(), "Take the model clip with prompts and texts='tower'"),
        (context(1)(build()), context(1), "no text tower without context"),
        (build(), context(20), "20 vectors make texts of 25 tokens, and the text tower has 24 positions"),
        (build(), context(initial=(3, 16)), "context: the token 16 is not among the 16 of the text tower"),
    ],
)
def test_other_models_and_long_texts_are_refused(network, adapt, message):
    with pytest.raises(InputError, match=message):
        adapt(network).init(KEY, IMAGES)


def test_numbers_that_contradict_each_other_are_refused():
    with pytest.raises(InputError, match="initial: 2 tokens cannot begin 3 vectors"):
        context(3, initial=(4, 5))
    with pytest.raises(InputError, match="initial: 0 tokens cannot begin any vectors"):
        context(initial=())
    with pytest.raises(InputError, match="without prompts there is nothing for a text tower to encode"):
        build(prompts=None)


@pytest.mark.slow
def test_promptfl_is_fedavg_on_the_context_and_trains_nothing_else():
    base = network_of("promptfl")
    recipe = fh.simulate(fh.algorithms.promptfl(num_tokens=2, **TRAINING), base, FEDERATION, rounds=2)
    adapted = fh.simulate(fh.algorithms.fedavg(**TRAINING), context(2)(base), FEDERATION, rounds=2)
    assert is_equal(recipe.state, adapted.state)
    start = fh.simulate(fh.algorithms.promptfl(num_tokens=2, **TRAINING), base, FEDERATION, rounds=1)
    assert tree.paths(recipe.state.server.shared) == ["params/context"]
    assert is_equal(start.state.server.frozen, recipe.state.server.frozen)
    assert not is_equal(start.state.server.shared, recipe.state.server.shared)


@pytest.mark.slow
def test_features_of_images_can_be_computed_once(tmp_path):
    network, path = network_of("promptfl"), str(tmp_path / "weights.safetensors")
    save_state_dict(path, network.init(KEY, IMAGES), CLIP_NAMES)
    network = context(2)(clip(3, prompts=make_prompts(3), pretrained=path, **CLIP))
    algorithm = fh.algorithms.fedavg(**TRAINING)
    whole = fh.simulate(algorithm, network, FEDERATION, rounds=2)
    cached = fh.simulate(algorithm, *fh.cache_features(network, FEDERATION), rounds=2)
    assert difference(whole.state.server.shared, cached.state.server.shared) < 1e-4


@pytest.mark.extended
def test_a_plan_has_its_mass_and_with_one_text_it_is_uniform_over_patches():
    similarity = jax.random.uniform(KEY, (2, 3, 5, 4), minval=-1.0)
    for mass in (0.5, 0.8, 1.0):
        plan = transport_plan(similarity, 0.5, mass)
        np.testing.assert_allclose(plan.sum((-2, -1)), mass, rtol=1e-5)
        assert plan.sum(-1).max() < 1 / 5 + 1e-3
    balanced = transport_plan(similarity, 0.5, None)
    np.testing.assert_allclose(balanced.sum(-1), 1 / 5, rtol=1e-2)
    np.testing.assert_allclose(balanced.sum(-2), 1 / 4, rtol=1e-5)
    np.testing.assert_allclose(transport_plan(similarity[..., :1], 0.1, None), 1 / 5, rtol=1e-5)
    assert np.isfinite(transport_plan(10 * similarity, 1e-3)).all()


@pytest.mark.extended
def test_without_a_personal_term_the_context_of_fedpgp_is_that_of_promptfl():
    plain, low_rank = context(2)(build()), low_rank_context(2, 3)(build())
    start = low_rank.init(KEY, IMAGES)["params"]
    own = {**start["context"], "u": jnp.zeros_like(start["context"]["u"])}
    shared = {**start, "context": own["shared"]}
    ours, theirs = logits(low_rank, {"params": {**start, "context": own}}), logits(plain, {"params": shared})
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert np.abs(logits(low_rank, {"params": start}) - ours).max() > 1e-5


def test_a_term_larger_than_its_vectors_is_refused():
    with pytest.raises(InputError, match="rank: 9 is larger than the 8 features of a vector"):
        jax.eval_shape(low_rank_context(2, 9)(build()).init, KEY, IMAGES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedotp", "fedpgp"])
def test_the_personal_part_of_a_context_stays_on_the_client(name):
    base = network_of(name)
    history = fh.simulate(fh.algorithms.ALGORITHMS[name](num_tokens=2, **TRAINING), base, FEDERATION, rounds=1)
    assert tree.paths(history.state.server.shared) == ["params/context/shared"]
    own = history.state.clients.personal["params"]["context"]
    assert own.keys() == {"own"} if name == "fedotp" else own.keys() == {"u", "v"}
    assert all(not np.array_equal(leaf[0, 0], leaf[0, 1]) for leaf in own.values())


@pytest.mark.extended
def test_text_contrast_needs_the_texts_of_a_shared_context():
    algorithm = replace(fh.algorithms.promptfl(num_tokens=2), objective=fh.algorithms.fedpgp().objective)
    with pytest.raises(InputError, match=r"the model has no texts of a shared context\. Use fh\.models\.low_rank_con"):
        fh.simulate(algorithm, network_of("promptfl"), FEDERATION, rounds=1)
