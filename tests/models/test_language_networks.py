"""Language networks: padding, causality, the files they read or refuse, adapters, and rounds of them."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.cli.configuration import build, settings
from fedjax_het.errors import InputError
from fedjax_het.models import MODELS, TORCH_NAMES, save_state_dict
from fedjax_het.models._pretrained import to_torch
from fedjax_het.types import Context

pytestmark = pytest.mark.extended

KEY = make_key(0)
SIZES = {"features": 8, "layers": 2, "heads": 2, "mlp_size": 12, "vocabulary": 11}
ENCODERS = {
    "bert": {"max_length": 12},
    "bert-mean": {"max_length": 12, "pooling": "mean"},
    "roberta": {"max_length": 14},
    "distilbert": {"max_length": 12},
}
DECODERS = {"gpt2": {"max_length": 12}, "llama": {"kv_heads": 1}, "llama-qwen2": {"kind": "qwen2", "is_tied": True}}
TOKENS = jax.random.randint(KEY, (3, 7), 0, 11)


def make(name, num_classes=3, **options):
    options = {**SIZES, **(ENCODERS | DECODERS)[name], **options}
    return MODELS[name.partition("-")[0]](num_classes, **options)


def logits(model, tokens, variables):
    context = Context(jnp.ones(len(tokens)), jnp.int32(0), KEY, False)
    return model.classify(variables["params"], model.encode(variables, tokens, context)[0][0])


def pad(tokens, left, right):
    return jnp.pad(tokens, [(0, 0), (left, right)], constant_values=-1)


@pytest.mark.slow
@pytest.mark.parametrize(("left", "right"), [(0, 4), (4, 0)])
@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS])
def test_padding_on_either_side_changes_no_class(name, left, right):
    model = make(name, **({"outputs": "last"} if name in DECODERS else {}))
    variables = model.init(KEY, TOKENS)
    padded = pad(TOKENS, left, right)
    np.testing.assert_allclose(logits(model, padded, variables), logits(model, TOKENS, variables), rtol=1e-4, atol=1e-5)
    gradient = jax.grad(lambda variables: jnp.sum(logits(model, padded.at[0].set(-1), variables) ** 2))(variables)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_a_position_is_predicted_from_the_tokens_up_to_it(name):
    model = make(name, 11)
    variables = model.init(KEY, TOKENS)
    before, after = (logits(model, tokens, variables) for tokens in (TOKENS, TOKENS.at[:, 4].add(1) % 11))
    assert before.shape == (3, 7, 11)
    np.testing.assert_allclose(after[:, :4], before[:, :4], rtol=1e-5, atol=1e-6)
    assert np.abs(after[:, 4:] - before[:, 4:]).max() > 1e-3
    left = logits(model, pad(TOKENS, 3, 0), variables)[:, 3:]
    np.testing.assert_allclose(left, before, rtol=1e-4, atol=1e-5)


def test_a_smaller_number_of_classes_cuts_the_vocabulary():
    whole, cut = make("gpt2", 11), make("gpt2", 5)
    variables = whole.init(KEY, TOKENS)
    assert "classifier" not in variables["params"]
    np.testing.assert_array_equal(logits(cut, TOKENS, variables), logits(whole, TOKENS, variables)[..., :5])


@pytest.mark.parametrize(
    ("name", "num_classes", "options", "message"),
    [
        ("bert", 3, {"features": 9}, "features: 9 cannot be divided among 2 heads"),
        ("llama", 3, {"heads": 4, "kv_heads": 3}, "heads: 4 cannot be divided among 3 kv_heads"),
        ("gpt2", 12, {}, "vocabulary: 11 tokens cannot predict 12 classes"),
        ("llama", 3, {"kind": "mistral"}, "kind: unknown option 'mistral'"),
        ("bert", 3, {"pooling": "max"}, "pooling: unknown option 'max'"),
    ],
)
def test_invalid_settings_are_refused(name, num_classes, options, message):
    with pytest.raises(InputError, match=message):
        make(name, num_classes, **options)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2"])
def test_texts_longer_than_the_positions_and_images_are_refused(name):
    model = make(name)
    with pytest.raises(InputError, match="has positions for 12 tokens, and was given 13"):
        jax.eval_shape(model.init, KEY, jnp.zeros((2, 13), jnp.int32))
    with pytest.raises(InputError, match=r"takes tokens \[batch, length\]"):
        jax.eval_shape(model.init, KEY, jnp.zeros((2, 4, 4, 3)))


# ---- files -----------------------------------------------------------------------------------------------------------
def naming(name, outputs="every"):
    names = TORCH_NAMES[name.partition("-")[0]]
    return names if isinstance(names, fh.models.Naming) else names[outputs]


@pytest.fixture
def bert(tmp_path):
    """(directory, variables) of a published BERT for three classes."""
    config = {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {"intermediate_size": 12, "vocab_size": 11, "max_position_embeddings": 12, "layer_norm_eps": 1e-3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    variables = make("bert").init(make_key(1), TOKENS)
    save_state_dict(tmp_path / "model.safetensors", variables, naming("bert"))
    return tmp_path, variables


def test_sizes_and_weights_follow_from_a_directory_and_another_head_is_new(bert):
    folder, variables = bert
    model = MODELS["bert"](3, pretrained=str(folder))
    read = model.init(KEY, TOKENS)
    jax.tree.map(np.testing.assert_array_equal, read, variables)
    expected = logits(make("bert", epsilon=1e-3), TOKENS, variables)
    np.testing.assert_array_equal(logits(model, TOKENS, read), expected)
    other = MODELS["bert"](5, pretrained=str(folder)).init(KEY, TOKENS)
    assert other["params"]["classifier"]["kernel"].shape == (8, 5)
    np.testing.assert_array_equal(other["params"]["pooler"]["kernel"], variables["params"]["pooler"]["kernel"])


def test_old_names_of_norms_and_files_without_prefix_are_read(bert):
    folder, variables = bert
    state = to_torch(variables, naming("bert"))
    rename = lambda key: re.sub("weight$", "gamma", re.sub("bias$", "beta", key)) if "LayerNorm" in key else key  # noqa: E731
    old = {rename(key).removeprefix("bert."): value for key, value in state.items() if "classifier" not in key}
    np.savez(folder / "old.npz", **old, **{"embeddings.position_ids": np.arange(12), "cls.bias": np.ones(1)})
    read = make("bert", pretrained=str(folder / "old.npz")).init(KEY, TOKENS)["params"]
    for name in set(read) - {"classifier"}:
        jax.tree.map(np.testing.assert_array_equal, read[name], variables["params"][name])


def test_missing_keys_are_named_and_contradictions_refused(bert):
    folder, variables = bert
    state = to_torch(variables, naming("bert"))
    del state["bert.encoder.layer.1.attention.self.query.weight"]
    np.savez(folder / "damaged.npz", **state)
    with pytest.raises(InputError, match=r"missing: bert\.encoder\.layer\.1\.attention\.self\.query\.weight \[8, 8\]"):
        make("bert", pretrained=str(folder / "damaged.npz")).init(KEY, TOKENS)
    with pytest.raises(InputError, match=r"layers: 3 contradicts .* num_hidden_layers is 2"):
        MODELS["bert"](3, pretrained=str(folder), layers=3)
    with pytest.raises(InputError, match=r"model_type is bert .* supports roberta"):
        MODELS["roberta"](3, pretrained=str(folder))


def test_a_language_model_needs_the_head_of_its_file_unless_it_is_tied(tmp_path):
    variables = make("llama", 11).init(KEY, TOKENS)
    state = to_torch(variables, naming("llama"))
    assert state.pop("lm_head.weight").shape == (11, 8)
    np.savez(tmp_path / "tied.npz", **state)
    with pytest.raises(InputError, match=r"missing: lm_head\.weight \[11, 8\]"):
        make("llama", 11, pretrained=str(tmp_path / "tied.npz")).init(KEY, TOKENS)
    read = make("llama", 11, pretrained=str(tmp_path / "tied.npz"), is_tied=True).init(KEY, TOKENS)
    jax.tree.map(np.testing.assert_array_equal, read["params"]["block_1"], variables["params"]["block_1"])


@pytest.mark.parametrize("name", [*ENCODERS, *DECODERS])
def test_every_leaf_has_a_published_name(name):
    variables = jax.eval_shape(make(name, 11).init, KEY, TOKENS)
    variables = jax.tree.map(lambda leaf: np.zeros(leaf.shape), variables)
    assert len(to_torch(variables, naming(name))) == len(tree.paths(variables))


# ---- training --------------------------------------------------------------------------------------------------------
def texts(is_dense):
    rng = np.random.default_rng(0)
    tokens = np.where(np.arange(7) < rng.integers(2, 8, 24)[:, None], rng.integers(0, 11, (24, 7)), -1)
    labels = np.roll(tokens, -1, axis=1) if is_dense else rng.integers(0, 3, 24)
    names = [str(label) for label in range(11 if is_dense else 3)]
    dataset = fh.data.assemble("texts", tokens.astype(np.int32), labels, class_names=names)
    return fh.data.federate(dataset, fh.data.iid(), 3, test_fraction=0.25)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "targets"), [("bert", ("query", "value")), ("gpt2", ("qkv",)), ("llama", ("query", "value"))]
)
def test_federated_averaging_trains_adapters_of_the_projections_alone(name, targets):
    is_dense = name == "gpt2"
    options = {} if name == "bert" else {"outputs": "every" if is_dense else "last"}
    model = make(name, 11 if is_dense else 3, **options)
    adapted = fh.models.lora(rank=2, targets=targets, train_head=not is_dense)(model)
    history = fh.simulate(
        fh.algorithms.fedavg(learning_rate=0.1, batch_size=4), adapted, texts(is_dense), rounds=2, evaluate_every=2
    )
    shared = {path for path in tree.paths(history.state.server.shared) if "classifier" not in path}
    layers = [f"params/block_{block}/attention/{target}" for block in range(2) for target in targets]
    assert shared == {f"{layer}/lora_{leaf}" for layer in layers for leaf in "ab"}
    assert np.isfinite(history.figures()["test/loss"]).all()


def test_a_config_builds_a_language_network_for_the_tokens_of_its_texts(tmp_path):
    path = tmp_path / "roles.json"
    path.write_text(json.dumps({f"role {role}": ["to be or not to be"] * 20 for role in "abc"}))
    table = {
        "algorithm": {"name": "fedavg", "learning_rate": 0.1},
        "model": {"name": "lstm", "hidden": (64,), "outputs": "every"},
        "data": {"name": "texts", "path": str(path), "num_clients": 0, "partition": {"name": "by_domain"}},
        "rounds": 1,
    }
    options = {"name": "gpt2", "features": 8, "layers": 1, "heads": 2, "vocabulary": 40, "dropout": 0.1}
    options |= {"adapter.name": "lora", "adapter.targets": "qkv", "adapter.train_head": "False"}
    overrides = {f"model.{name}": str(value) for name, value in options.items()}
    complete, _ = settings.complete_settings(table, overrides)
    parts = build.build_parts(complete, {})
    variables = parts.model.init(KEY, TOKENS)["params"]
    assert variables["embedding"]["embedding"].shape == (40, 8)
    assert "lora_a" in variables["block_0"]["attention"]["qkv"]
