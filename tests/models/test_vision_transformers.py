"""Vision transformers: files of several implementations, positions of other image sizes, heads, adapters in a round."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import fedjax_het as fh
from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models import ADAPTERS, TORCH_NAMES, bottleneck, cnn, lora, save_state_dict, visual_prompts, vit
from fedjax_het.models._position_grids import resample_positions
from fedjax_het.models._pretrained import to_torch
from fedjax_het.models._vision_names import TIMM_NAMES, VIT_NAMES
from fedjax_het.types import Context

KEY = make_key(0)
SIZES = {"features": 12, "layers": 2, "heads": 2, "patch": 4}
IMAGES = jax.random.normal(KEY, (2, 8, 8, 3))


def init(model, images=IMAGES, seed=0):
    """Random leaves, those that begin at 0 included."""
    shapes, random = jax.eval_shape(model.init, KEY, images), np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(random.normal(size=leaf.shape), jnp.float32), shapes)


def logits(model, variables, images=IMAGES):
    context = Context(jnp.ones(len(images)), jnp.int32(0), KEY, False)
    return model.classify(variables["params"], model.encode(variables, images, context)[0][0])


def write(folder, variables, names=TIMM_NAMES):
    path = folder / "weights.safetensors"
    save_state_dict(path, variables, names)
    return str(path)


@pytest.mark.parametrize("resampling", ["timm", "huggingface", "dinov2", "dinov2_registers"])
def test_positions_of_an_equal_grid_are_unchanged_and_those_of_tokens_always(resampling):
    stored = np.random.default_rng(0).normal(size=(11, 5))
    np.testing.assert_array_equal(resample_positions(stored, 2, (3, 3), resampling), stored)
    larger = resample_positions(stored, 2, (4, 6), resampling)
    assert larger.shape == (26, 5)
    np.testing.assert_array_equal(larger[:2], stored[:2])


@pytest.mark.parametrize("resampling", ["timm", "huggingface", "dinov2", "dinov2_registers"])
def test_resampled_positions_of_a_constant_are_constant(resampling):
    positions = resample_positions(np.full((9, 2), 3.0), 0, (2, 7), resampling)
    np.testing.assert_allclose(positions, np.full((14, 2), 3.0), rtol=1e-12)


def test_positions_of_no_square_grid_are_refused():
    with pytest.raises(InputError, match="12 position embeddings, which are not 1 and those of a square grid"):
        resample_positions(np.zeros((12, 2)), 1, (2, 2), "timm")


@pytest.mark.slow
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("naming", range(3))
def test_files_of_every_implementation_are_told_apart_by_their_keys(tmp_path, naming, is_fused):
    sizes = SIZES | ({"layer_scale": 1.0} if naming == 2 else {})
    variables = init(vit(3, fused_qkv=is_fused, **sizes))
    path = write(tmp_path, variables, VIT_NAMES[naming])
    loaded = vit(3, pretrained=path, fused_qkv=is_fused, **sizes)
    chex.assert_trees_all_equal(loaded.init(KEY, IMAGES), variables)
    other = vit(3, pretrained=path, fused_qkv=not is_fused, **sizes)
    expected = logits(loaded, variables)
    np.testing.assert_allclose(logits(other, other.init(KEY, IMAGES)), expected, rtol=1e-4, atol=1e-4)


def test_weights_are_exported_with_the_names_of_timm_by_default():
    state = to_torch(init(vit(3, **SIZES)), TORCH_NAMES["vit"])
    assert state["blocks.1.attn.qkv.weight"].shape == (36, 12) and state["head.weight"].shape == (3, 12)
    assert state["cls_token"].shape == (1, 1, 12) and state["pos_embed"].shape == (1, 5, 12)
    assert "vit.pooler.dense.weight" in to_torch(init(vit(3, pooling="pooler", **SIZES)), TORCH_NAMES["vit"])


@pytest.mark.slow
def test_registers_have_no_positions_and_files_of_timm_no_position_of_the_class(tmp_path):
    model = vit(3, registers=4, **SIZES)
    variables = init(model)
    assert variables["params"]["positions"].shape == (5, 12) and variables["params"]["registers"].shape == (4, 12)
    state = to_torch(variables, TIMM_NAMES)
    positions = state.pop("pos_embed")
    state["reg_token"] = state.pop("register_tokens")
    state |= {"cls_token": state["cls_token"] + positions[:, :1], "pos_embed": positions[:, 1:]}
    safetensors.numpy.save_file(state, tmp_path / "timm.safetensors")
    timm = vit(3, registers=4, pretrained=str(tmp_path / "timm.safetensors"), **SIZES)
    np.testing.assert_allclose(logits(timm, timm.init(KEY, IMAGES)), logits(model, variables), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_another_number_of_classes_or_image_size_needs_no_other_file(tmp_path):
    variables = init(vit(3, **SIZES))
    path, larger = write(tmp_path, variables), jnp.zeros((1, 12, 16, 3))
    model = vit(7, pretrained=path, **SIZES)
    begun = model.init(KEY, larger)["params"]
    fresh = vit(7, **SIZES).init(KEY, larger)["params"]
    assert begun["positions"].shape == (1 + 12, 12)
    chex.assert_trees_all_equal(begun["classifier"], fresh["classifier"])
    chex.assert_trees_all_equal(begun["block_1"], variables["params"]["block_1"])
    plain = vit(7, pretrained=path, resampling="huggingface", **SIZES).init(KEY, larger)["params"]
    assert np.abs(plain["positions"] - begun["positions"]).max() > 0.01


@pytest.mark.slow
def test_the_two_heads_of_a_distilled_network_are_the_head_and_replaced_together(tmp_path):
    model = vit(3, distilled=True, **SIZES)
    variables = init(model)
    assert set(variables["params"]["classifier"]) == {"class", "distillation"}
    path = write(tmp_path, variables)
    begun = vit(4, distilled=True, pretrained=path, **SIZES).init(KEY, IMAGES)["params"]
    assert {leaf.shape[-1] for leaf in jax.tree.leaves(begun["classifier"])} == {4}
    with pytest.raises(InputError, match=r"6 position embeddings, .*\(distilled, registers\)"):
        vit(3, pretrained=path, **SIZES).init(KEY, IMAGES)


@pytest.mark.parametrize(
    ("options", "images", "message"),
    [
        (SIZES, (2, 8, 9, 3), "patch: images of 8x9 cannot be cut into patches of 4x4"),
        (SIZES, (2, 8), "a vision transformer takes images"),
        (SIZES | {"heads": 5}, None, "features: 12 cannot be divided among 5 heads"),
        (SIZES | {"distilled": True, "pooling": "avg"}, None, "pooling: a distilled network"),
        ({"size": "huge"}, None, "size: unknown option 'huge'"),
    ],
)
def test_invalid_settings_and_images_are_refused(options, images, message):
    with pytest.raises(InputError, match=message):
        jax.eval_shape(vit(3, **options).init, KEY, jnp.zeros(images or (1, 8, 8, 3)))


@pytest.mark.slow
def test_damaged_files_are_named_with_their_keys(tmp_path):
    variables = init(vit(3, **SIZES))
    state = to_torch(variables, TIMM_NAMES)
    state["blocks.1.attn.qkv.weight"] = state["blocks.1.attn.qkv.weight"][:-1]
    del state["blocks.0.mlp.fc1.bias"]
    safetensors.numpy.save_file(state, tmp_path / "damaged.safetensors")
    model = vit(3, pretrained=str(tmp_path / "damaged.safetensors"), **SIZES)
    with pytest.raises(InputError, match=r"(?s)missing: blocks.0.mlp.fc1.bias \[48\].*qkv.weight is \[35, 12\]"):
        model.init(KEY, IMAGES)


@pytest.mark.extended
def test_sizes_follow_from_the_configuration(tmp_path):
    config = {"model_type": "vit", "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {"intermediate_size": 20, "patch_size": 4, "layer_norm_eps": 1e-12}
    (tmp_path / "config.json").write_text(json.dumps(config))
    variables = init(vit(3, mlp_size=20, **SIZES))
    save_state_dict(tmp_path / "model.safetensors", variables, VIT_NAMES[1])
    chex.assert_trees_all_equal(jax.jit(vit(3, pretrained=str(tmp_path)).init)(KEY, IMAGES), variables)
    with pytest.raises(InputError, match="features: 192 contradicts"):
        vit(3, features=192, pretrained=str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    with pytest.raises(InputError, match="hidden_act is relu"):
        vit(3, pretrained=str(tmp_path))


@pytest.mark.slow
def test_a_round_trains_adapters_of_a_vision_transformer_alone():
    network = lora(2, targets=("query", "value"))(vit(3, **SIZES))
    federation = fh.data.toy(num_clients=2, num_classes=3, image=(8, 8, 3))
    history = fh.simulate(fh.algorithms.fedavg(learning_rate=0.1), network, federation, rounds=1)
    server = history.state.server
    trained = {path.removeprefix("params/") for path in tree.paths(server.shared)}
    layers = [f"block_{index}/attention/{name}" for index in range(2) for name in ("query", "value")]
    adapters = {f"{layer}/{leaf}" for layer in layers for leaf in ("lora_a", "lora_b")}
    assert trained == adapters | {"classifier/kernel", "classifier/bias"}
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(server.shared))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "created", "options"),
    [
        ("vit_tiny_patch16_224", (160, 192), {"dynamic_img_size": True}, {}),
        ("deit_tiny_distilled_patch16_224", (224, 224), {}, {"distilled": True}),
        (
            "vit_small_patch14_reg4_dinov2",
            (112, 112),
            {"dynamic_img_size": True, "num_classes": 7},
            {"size": "small", "patch": 14, "registers": 4, "layer_scale": 1e-5},
        ),
    ],
)
def test_networks_of_timm_have_the_same_logits(tmp_path, name, size, created, options):
    torch, timm = pytest.importorskip("torch"), pytest.importorskip("timm")
    torch.manual_seed(0)
    theirs = timm.create_model(name, pretrained=False, **created).eval()
    with torch.no_grad():
        for leaf in theirs.parameters():
            leaf.add_(0.02 * torch.randn_like(leaf))
        images = torch.randn(2, 3, *size)
        expected = theirs(images).numpy()
    state = {key: value.numpy() for key, value in theirs.state_dict().items()}
    safetensors.numpy.save_file(state, tmp_path / "timm.safetensors")
    model = vit(expected.shape[1], pretrained=str(tmp_path / "timm.safetensors"), **options)
    images = np.moveaxis(images.numpy(), 1, -1)
    np.testing.assert_allclose(logits(model, model.init(KEY, images), images), expected, atol=1e-4)


# ---- adapters --------------------------------------------------------------------------------------------------------
SMALL = {"bottleneck": {"size": 3}, "visual_prompts": {"num_prompts": 2}, "deep": {"num_prompts": 2, "deep": True}}


def adapt(name, model):
    return ADAPTERS["visual_prompts" if name == "deep" else name](**SMALL[name])(model)


@pytest.mark.extended
@pytest.mark.parametrize("pooling", ["token", "avg"])
@pytest.mark.parametrize("name", SMALL)
def test_adapters_keep_the_shape_of_features_and_bottlenecks_begin_as_the_identity(name, pooling):
    base = vit(3, pooling=pooling, **SIZES)
    model = adapt(name, base)
    variables, before = model.init(KEY, IMAGES), base.init(KEY, IMAGES)
    same = np.array_equal(logits(model, variables), logits(base, before))
    assert same == (name == "bottleneck")
    assert logits(model, variables).shape == (2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_round_trains_the_leaves_of_adapters_and_the_head_alone(name):
    federation = fh.data.toy(num_clients=2, num_classes=3, image=(8, 8, 3))
    network = adapt(name, vit(3, **SIZES))
    history = fh.simulate(fh.algorithms.fedavg(learning_rate=0.1), network, federation, rounds=1)
    trained = set(tree.paths(history.state.server.shared))
    layers = [f"params/block_{index}/{layer}" for index in range(2) for layer in ("attention/out", "dense_1")]
    parts = [f"bottleneck_{part}{end}" for part in ("down", "up") for end in ("", "_bias")]
    own = {f"{layer}/{part}" for layer in layers for part in parts} if name == "bottleneck" else {"params/prompts"}
    assert trained == own | {"params/classifier/kernel", "params/classifier/bias"}
    before = network.init(KEY, IMAGES)
    shapes = {path: leaf.shape for path, leaf in tree.leaves_by_path(before).items() if path in own}
    if name != "bottleneck":
        assert shapes == {"params/prompts": (2 if name == "deep" else 1, 2, 12)}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (visual_prompts()(cnn(3)), "visual_prompts: the model is no vision transformer"),
        (visual_prompts()(visual_prompts()(vit(3, **SIZES))), "without prompts"),
        (bottleneck(targets="mlp")(vit(3, **SIZES)), "targets: 'mlp' matches no dense layer"),
        (bottleneck()(bottleneck()(vit(3, **SIZES))), "has such adapters already"),
    ],
)
def test_adapters_of_other_networks_or_layers_are_refused(model, message):
    with pytest.raises(InputError, match=message):
        jax.eval_shape(model.init, KEY, IMAGES)
