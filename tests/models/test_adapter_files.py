"""Low-rank adapters to the two files of peft and back, weights in published form, and both for each network."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from fedjax_het import sharing, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models import (
    MODELS,
    lora,
    merge_adapters,
    mlp,
    pretrained_lora,
    remove_adapters,
    save_adapters,
    save_published,
)
from fedjax_het.types import Context

pytestmark = pytest.mark.extended

KEY = make_key(0)
TEXTS = jax.random.randint(KEY, (3, 6), 2, 11)  # 1 is padding of RoBERTa
IMAGES = jax.random.normal(KEY, (2, 8, 8, 3))
SIZES = {"features": 8, "layers": 2, "heads": 2}
LANGUAGE = {**SIZES, "mlp_size": 12, "vocabulary": 11}
NETWORKS = {
    "bert": ("bert", {**LANGUAGE, "max_length": 12}),
    "roberta": ("roberta", {**LANGUAGE, "max_length": 14}),
    "distilbert": ("distilbert", {**LANGUAGE, "max_length": 12}),
    "gpt2": ("gpt2", {**LANGUAGE, "max_length": 12, "outputs": "last"}),
    "gpt2-every": ("gpt2", {**LANGUAGE, "max_length": 12}),
    "llama": ("llama", {**LANGUAGE, "kv_heads": 1, "outputs": "last"}),
    "llama-every": ("llama", {**LANGUAGE, "kv_heads": 1}),
    "vit": ("vit", {**SIZES, "patch": 4, "fused_qkv": True}),
    "vit-pooler": ("vit", {**SIZES, "patch": 4, "pooling": "pooler"}),
    "clip": ("clip", {**SIZES, "patch": 4, "projection": 6, "text_features": 8, "text_layers": 1, "text_heads": 2}),
    "resnet18": ("resnet18", {"stem": "small", "width": 1 / 32, "norm": "batch", "conv": "lax"}),
}
IS_TIED = "gpt2-every"


def make(name, num_classes=3, **options):
    network, own = NETWORKS[name]
    return MODELS[network](num_classes, **own, **options)


def inputs_of(name):
    return IMAGES if NETWORKS[name][0] in ("vit", "clip", "resnet18") else TEXTS


def draw(model, inputs, seed=1):
    """Random leaves, those that begin at 0 included."""
    random = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, KEY, inputs)
    leaves = jax.tree.map(lambda leaf: jnp.asarray(random.uniform(-0.2, 0.4, leaf.shape), leaf.dtype), shapes)
    return leaves | {name: jax.tree.map(jnp.square, leaves[name]) for name in leaves if name == "batch_stats"}


def run(model, variables, inputs):
    @jax.jit
    def classify(variables):
        context = Context(jnp.ones(len(inputs)), jnp.int32(0), KEY, False)
        return model.classify(variables["params"], model.encode(variables, inputs, context)[0][0])

    return classify(variables)


def trained_paths(model, variables, inputs):
    return tree.paths(sharing.group_leaves(model, sharing.share_all, variables, inputs).shared)


def adapt(name):
    targets = {"resnet18": "stage_*/conv_*", "distilbert": "block_*"}.get(name, "*")
    return lora(rank=2, alpha=3, targets=targets, train_head=name != IS_TIED)(make(name))


def write(folder, name, model):
    """Random variables, written to the files of peft."""
    variables = draw(model, inputs_of(name))
    unnamed = save_adapters(folder, variables, model, trained_paths(model, variables, inputs_of(name)))
    assert unnamed == (["params/classifier/kernel"] if name == "clip" else [])
    return variables


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_adapters_are_read_as_they_were_written(name, tmp_path):
    model = adapt(name)
    variables, inputs = write(tmp_path, name, model), inputs_of(name)
    other = pretrained_lora(str(tmp_path), train_head=name != IS_TIED)(make(name))
    read = jax.jit(other.init)(KEY, inputs)
    trained = trained_paths(model, variables, inputs)
    ends_alike = {"params/pooler/bias", "params/pooler/kernel"} if name == "distilbert" else set()  # pre_classifier
    assert set(trained_paths(other, read, inputs)) == {*trained, *ends_alike}
    given, leaves = tree.leaves_by_path(variables), tree.leaves_by_path(read)
    assert given.keys() == leaves.keys()
    for path in set(trained) - ({"params/classifier/kernel"} if name == "clip" else set()):
        np.testing.assert_array_equal(leaves[path], given[path], err_msg=path)
    np.testing.assert_array_equal(run(other, variables, inputs), run(model, variables, inputs))


@pytest.mark.parametrize("name", NETWORKS)
def test_merged_weights_have_the_logits_of_the_adapters(name):
    model, inputs = adapt(name), inputs_of(name)
    variables = draw(model, inputs)
    merged = merge_adapters(model, variables)
    assert jax.tree.map(jnp.shape, merged) == jax.tree.map(jnp.shape, jax.eval_shape(make(name).init, KEY, inputs))
    expected = run(model, variables, inputs)
    assert np.abs(expected - run(make(name), tree.partition_like(variables, merged)[1], inputs)).max() > 1e-3
    np.testing.assert_allclose(run(make(name), merged, inputs), expected, rtol=2e-4, atol=1e-5)


# ---- weights in published form ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "gpt2", "gpt2-every", "llama", "llama-every"])
def test_sizes_and_weights_of_an_exported_directory_are_those_of_the_network(name, tmp_path):
    model, options = make(name, 5), {key: value for key, value in NETWORKS[name][1].items() if key == "outputs"}
    variables = draw(model, TEXTS)
    save_published(tmp_path, variables, model)
    again = MODELS[NETWORKS[name][0]](5, pretrained=str(tmp_path), **options)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(again.init)(KEY, TEXTS), variables)
    np.testing.assert_array_equal(run(again, variables, TEXTS), run(model, variables, TEXTS))


def test_an_exported_configuration_is_that_of_the_file_with_the_classes_and_images_of_the_run(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    save_published(source, draw(make("vit-pooler"), IMAGES), make("vit-pooler"))
    assert not (source / "config.json").exists()
    published = {"model_type": "vit", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    published |= {"patch_size": 4, "image_size": 8, "dtype": "bfloat16", "qkv_bias": True}
    (source / "config.json").write_text(json.dumps(published))
    model = MODELS["vit"](2, pretrained=str(source), pooling="pooler")
    images = jnp.zeros((1, 16, 8, 3))
    save_published(target, draw(model, images), model, ("cat", "dog"), images.shape[1:3])
    written = json.loads((target / "config.json").read_text())
    names = {"id2label": {"0": "cat", "1": "dog"}, "label2id": {"cat": 0, "dog": 1}}
    expected = published | names | {"image_size": [16, 8]}
    assert written == {key: value for key, value in expected.items() if key != "dtype"}
    keys = safetensors.numpy.load_file(target / "model.safetensors").keys()
    assert "vit.encoder.layer.0.attention.attention.query.weight" in keys


# ---- other files of peft ---------------------------------------------------------------------------------------------
@pytest.fixture
def files(tmp_path):
    """(folder of adapters of GPT-2, a function that changes its configuration and arrays)."""
    write(tmp_path, "gpt2", adapt("gpt2"))

    def change(arrays=lambda state: state, **options):
        path, weights = tmp_path / "adapter_config.json", tmp_path / "adapter_model.safetensors"
        path.write_text(json.dumps(json.loads(path.read_text()) | options))
        safetensors.numpy.save_file(arrays(safetensors.numpy.load_file(weights)), weights)

    return tmp_path, change


@pytest.mark.slow
def test_ranks_and_scales_of_patterns_and_half_precision_are_read(files):
    folder, change = files
    grown = "base_model.model.transformer.h.1.mlp.c_fc"

    def grow(state):
        for factor, axis in (("A", 0), ("B", 1)):
            key = f"{grown}.lora_{factor}.weight"
            state[key] = np.repeat(state[key], 2, axis)
        return {key: value.astype(np.float16) for key, value in state.items()}

    rank_pattern, alpha_pattern = {r"h\.1\.mlp\.c_fc": 4}, {"c_fc": 8, "transformer.h.0.attn.c_attn": 5}
    change(grow, rank_pattern=rank_pattern, alpha_pattern=alpha_pattern, use_rslora=True)
    model = pretrained_lora(str(folder))(make("gpt2"))
    variables = model.init(KEY, TEXTS)
    assert variables["params"]["block_1"]["dense_0"]["lora_a"].shape == (8, 4)
    assert variables["params"]["block_1"]["dense_0"]["lora_a"].dtype == jnp.float32
    scales = {"block_0/attention/qkv": 5 / 2**0.5, "block_1/attention/qkv": 3 / 2**0.5}
    scales |= {"block_0/dense_0": 8 / 2**0.5, "block_1/dense_0": 8 / 4**0.5}
    assert {layer: model.term_scale(variables, layer, "lora") for layer in scales} == pytest.approx(scales)
    merged = merge_adapters(model, variables)
    expected = run(make("gpt2"), merged, TEXTS)
    np.testing.assert_allclose(run(model, variables, TEXTS), expected, rtol=2e-4, atol=1e-5)


def with_key(name):
    return lambda state: state | {name: np.ones((2, 2), np.float32)}


HEAD = "base_model.model.score.weight"
LAYER = "base_model.model.transformer.h.0.mlp.c_fc"


@pytest.mark.parametrize(
    ("options", "arrays", "message"),
    [
        (
            {"use_dora": True},
            None,
            "use_dora is true in .*adapter_config.json', and low-rank adapters here have",
        ),
        ({"lora_bias": True}, None, "lora_bias is true"),
        ({"bias": "lora_only"}, None, 'bias is "lora_only" in .* here have "none"'),
        ({"peft_type": "IA3"}, None, 'peft_type is "IA3"'),
        ({"layer_replication": [[0, 1]]}, None, "layer_replication is"),
        ({"r": 3}, None, r"lora_A \[8, 2\] and lora_B \[2, 24\] \(transposed\) of .*c_attn, whose rank is 3 in"),
        ({}, with_key(f"{LAYER}.lora_magnitude_vector"), "lora_magnitude_vector, which is not of a low-rank adapter"),
        ({}, with_key("transformer.h.0.mlp.c_fc.weight"), "which is not of a low-rank adapter"),
        ({}, with_key("base_model.model.transformer.h.7.ln_1.weight"), "h.7.ln_1.weight, which is no layer of this"),
        ({}, with_key(HEAD), r"score.weight \[2, 2\], and 'params/classifier/kernel' \[8, 3\] does not fit"),
        ({}, with_key(f"{LAYER}.lora_A.weight"), "whose rank is 2|of another shape|is for a layer"),
        ({}, lambda state: {HEAD: state[HEAD]}, "holds no low-rank adapters"),
    ],
)
def test_other_files_are_refused_with_the_reason(files, options, arrays, message):
    folder, change = files
    change(arrays or (lambda state: state), **options)
    with pytest.raises(InputError, match=message):
        jax.eval_shape(pretrained_lora(str(folder))(make("gpt2")).init, KEY, TEXTS)


def test_other_models_and_missing_files_are_refused(files, tmp_path):
    folder, _ = files
    with pytest.raises(InputError, match=r"which is no layer of this model \(\d+ such keys\)"):
        jax.eval_shape(pretrained_lora(str(folder))(make("bert")).init, KEY, TEXTS)
    with pytest.raises(InputError, match="this model has no names in published files"):
        pretrained_lora(str(folder))(mlp(3))
    with pytest.raises(InputError, match="the model has such adapters already"):
        lora()(pretrained_lora(str(folder))(make("gpt2")))
    with pytest.raises(InputError, match=r"there is no file '.*adapter_config.json'"):
        pretrained_lora(str(tmp_path / "nowhere"))


@pytest.mark.slow
# ---- layers that are one in the file and several here ----------------------------------------------------------------
@pytest.mark.parametrize("name", ["vit", "vit-pooler"])
@pytest.mark.parametrize("is_fused", [False, True])
def test_adapters_of_fused_layers_are_the_same_function_in_either_form(name, is_fused, tmp_path):
    network, own = NETWORKS[name]
    split, fused = (MODELS[network](3, **{**own, "fused_qkv": is_fused}) for is_fused in (False, True))
    given, other = (fused, split) if is_fused else (split, fused)
    model = lora(rank=2, targets="qkv" if is_fused else ("query", "value"))(given)
    variables = draw(model, IMAGES)
    save_adapters(tmp_path, variables, model, trained_paths(model, variables, IMAGES))
    expected = run(model, variables, IMAGES)
    for base in (given, other):
        save_published(tmp_path / "base", remove_adapters(variables), model)
        start = MODELS[network](3, **{**own, "fused_qkv": base is fused}, pretrained=str(tmp_path / "base"))
        again = pretrained_lora(str(tmp_path))(start)
        found = run(again, jax.jit(again.init)(KEY, IMAGES), IMAGES)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    ends = {target.rpartition(".")[2] for target in config["target_modules"]}
    assert config["r"] == (2 if is_fused or name == "vit-pooler" else 4)
    assert ends == ({"qkv"} if name == "vit" else {"q_proj", "k_proj", "v_proj"} if is_fused else {"q_proj", "v_proj"})


@pytest.mark.slow
def test_names_in_files_and_in_memory_are_both_read(tmp_path):
    model = adapt("vit-pooler")
    variables = write(tmp_path, "vit-pooler", model)
    weights = tmp_path / "adapter_model.safetensors"
    state = safetensors.numpy.load_file(weights)
    renamed = {"vit.layers.": "vit.encoder.layer.", "attention.q_proj": "attention.attention.query"}
    renamed |= {"attention.k_proj": "attention.attention.key", "attention.v_proj": "attention.attention.value"}
    renamed |= {
        "attention.o_proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    for new, old in renamed.items():
        assert any(new in key for key in state)
        state = {key.replace(new, old): value for key, value in state.items()}
    safetensors.numpy.save_file(state, weights)
    read = pretrained_lora(str(tmp_path))(make("vit-pooler")).init(KEY, IMAGES)
    for path in trained_paths(model, variables, IMAGES):
        np.testing.assert_array_equal(tree.leaves_by_path(read)[path], tree.leaves_by_path(variables)[path])


def test_layers_that_peft_would_confuse_with_a_whole_one_are_refused(tmp_path):
    model = lora()(make("distilbert"))
    with pytest.raises(InputError, match="for peft, pre_classifier is one of the whole layers classifier"):
        write(tmp_path, "distilbert", model)
