"""CLIP: the head of texts, prompts that are refused, files of both implementations, and a round of linear probing."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models import clip, lora, save_state_dict, train_only
from fedjax_het.models._clip import make_towers, normalize
from fedjax_het.models._vision_names import CLIP_NAMES
from fedjax_het.types import Context

KEY = make_key(0)
SIZES = {"features": 12, "layers": 2, "heads": 2, "patch": 4, "projection": 6, "text_features": 8, "text_layers": 1}
SIZES |= {"text_heads": 2, "text_vocabulary": 20, "text_max_length": 7}
PROMPTS = [[1, 5, 9, 19, 0], [1, 6, 19, 0, 0], [1, 7, 8, 3, 19]]
IMAGES = jax.random.normal(KEY, (2, 8, 8, 3))


def whole_params():
    """Both towers at random."""
    images, texts = make_towers(3, None, SIZES)
    params = images.init(KEY, IMAGES, jnp.ones(2), False, method="encode")["params"]
    return {**params, "logit_scale": jnp.asarray(2.0), "text": texts.init(KEY, np.asarray(PROMPTS))["params"]}


def encode(model, variables):
    return model.encode(variables, IMAGES, Context(jnp.ones(2), jnp.int32(0), KEY, False))[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("naming", range(2))
def test_the_head_is_made_of_the_texts_of_the_file(tmp_path, naming):
    params, path = whole_params(), tmp_path / "weights.safetensors"
    save_state_dict(path, {"params": params}, CLIP_NAMES[naming])
    model = clip(3, prompts=PROMPTS, pretrained=str(path), **SIZES)
    variables = model.init(KEY, IMAGES)
    own = dict(variables["params"])
    head = own.pop("classifier")["kernel"]
    chex.assert_trees_all_equal(own, {name: leaf for name, leaf in params.items() if name != "text"})
    texts = make_towers(3, None, SIZES)[1].apply({"params": params["text"]}, np.asarray(PROMPTS))
    np.testing.assert_allclose(head, texts.T, rtol=1e-5, atol=1e-6)
    features = encode(model, variables)
    np.testing.assert_allclose(np.linalg.norm(features, axis=-1), 1, rtol=1e-5)
    expected = np.exp(2.0) * features @ texts.T
    np.testing.assert_allclose(model.classify(variables["params"], features), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_texts_follow_their_classes_and_ignore_what_is_behind_the_end_token():
    whole, text = whole_params(), make_towers(3, None, SIZES)[1]
    run = lambda tokens: text.apply({"params": whole["text"]}, np.asarray(tokens))  # noqa: E731
    first = run(PROMPTS)
    np.testing.assert_allclose(run(PROMPTS[::-1]), first[::-1], rtol=1e-5, atol=1e-6)
    changed = [[1, 5, 9, 19, 4], [1, 6, 19, 4, 2], [1, 7, 8, 3, 19]]
    np.testing.assert_allclose(run(changed), first, rtol=1e-5, atol=1e-6)
    by_id = make_towers(3, None, {**SIZES, "text_eos": 19})[1]
    again = by_id.apply({"params": whole["text"]}, np.asarray([[1, 6, 19, 19, 19]]))
    np.testing.assert_allclose(again, first[1:2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        (PROMPTS[:2], {}, "expected the tokens of 3 texts"),
        ([*PROMPTS[:2], [1, 19]], {}, r"got 3 texts of lengths \[2, 5\]"),
        ([[1, 5, 20]] * 3, {}, "3 tokens up to 20, and the text tower has 7 positions and 20 tokens"),
        ([[1] * 8] * 3, {}, "8 tokens up to 1"),
        ([[1, 19], [1, 18], [1, 19]], {"text_eos": 19}, "the text of class 1 lacks the end token 19"),
        (PROMPTS, {"text_heads": 3}, "features: 8 cannot be divided among 3 heads"),
    ],
)
def test_invalid_prompts_and_sizes_are_refused(prompts, options, message):
    with pytest.raises(InputError, match=message):
        clip(3, prompts=prompts, **SIZES | options)


def test_a_vector_is_normalized_to_length_one():
    np.testing.assert_allclose(normalize(jnp.asarray([[3.0, 4.0]])), [[0.6, 0.8]], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("adapt", [train_only("params/classifier/*"), lora(2, targets="query", train_head=False)])
def test_a_round_trains_the_chosen_leaves_of_clip_alone(adapt):
    network = adapt(clip(3, prompts=PROMPTS, **SIZES))
    federation = fh.data.toy(num_clients=2, num_classes=3, image=(8, 8, 3))
    history = fh.simulate(fh.algorithms.fedavg(learning_rate=0.1), network, federation, rounds=1)
    trained = tree.paths(history.state.server.shared)
    assert trained and all(path.endswith(("classifier/kernel", "query/lora_a", "query/lora_b")) for path in trained)
    assert np.isfinite(history.evaluation.test.accuracy).all()
