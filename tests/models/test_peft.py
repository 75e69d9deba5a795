"""Exported weights and adapters in transformers and peft: the same logits."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import tree
from fedjax_het.models import (
    MODELS,
    lora,
    merge_adapters,
    pretrained_lora,
    remove_adapters,
    save_adapters,
    save_published,
)
from tests.models.test_adapter_files import KEY, TEXTS, adapt, draw, make, run, trained_paths
from tests.shared import shared_path

pytestmark = pytest.mark.slow

TOLERANCE = 1e-5


@pytest.fixture
def libraries():
    """(torch, transformers, peft)"""
    return tuple(pytest.importorskip(name) for name in ("torch", "transformers", "peft"))


def export(folder, model, variables, inputs, **options):
    """Write adapters, their base and the merged weights."""
    save_adapters(folder / "adapters", variables, model, trained_paths(model, variables, inputs))
    save_published(folder / "base", remove_adapters(variables), model, **options)
    save_published(folder / "merged", merge_adapters(model, variables), model, **options)


def load(libraries, folder, kind):
    """Their networks: (merged, adapted, base)."""
    _, transformers, peft = libraries
    networks = [getattr(transformers, kind).from_pretrained(folder / name) for name in ("merged", "base", "base")]
    merged, base, untouched = (network.eval() for network in networks)
    return merged, peft.PeftModel.from_pretrained(base, folder / "adapters").eval().base_model.model, untouched


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "gpt2", "gpt2-every", "llama", "llama-every"])
def test_language_networks_with_adapters_have_the_same_logits_in_peft(name, libraries, tmp_path):
    torch, *_ = libraries
    model = adapt(name)
    variables = draw(model, TEXTS)
    export(tmp_path, model, variables, TEXTS)
    expected = run(model, variables, TEXTS)
    kind = "AutoModelForCausalLM" if name.endswith("every") else "AutoModelForSequenceClassification"
    tokens = torch.from_numpy(np.asarray(TEXTS)).long()
    merged, adapted, base = load(libraries, tmp_path, kind)
    for network in (merged, adapted, base):
        network.config.pad_token_id = 1  # of no text
    with torch.no_grad():
        found = [network(tokens).logits.numpy()[..., : expected.shape[-1]] for network in (merged, adapted, base)]
    np.testing.assert_allclose(found[0], expected, atol=TOLERANCE)
    np.testing.assert_allclose(found[1], expected, atol=TOLERANCE)
    assert np.abs(found[2] - expected).max() > 100 * TOLERANCE


@pytest.mark.parametrize(
    ("case", "kind", "options"),
    [
        ("vit/hf_s0_same_as_timm_s0", "AutoModelForImageClassification", {}),
        ("vit/hf_s5_dinov2_cls", "AutoModelForImageClassification", {"pooling": "token_and_mean"}),
        ("clip/hf_s0", "CLIPVisionModelWithProjection", {}),
    ],
)
def test_image_networks_of_another_size_with_adapters_have_the_same_outputs_in_peft(
    case, kind, options, libraries, tmp_path
):
    torch, *_ = libraries
    source, stored = tmp_path / "source", shared_path(f"golden/{case}.npz")
    source.mkdir()
    config = json.loads(str(np.load(stored)["meta"]))["config"]
    (source / "config.json").write_text(json.dumps(config))
    shutil.copy(stored.with_suffix(".safetensors"), source / "model.safetensors")
    size = 2 * config.get("vision_config", config)["image_size"]
    images = jax.random.normal(KEY, (2, size, size, 3))

    name = case.partition("/")[0]
    base = MODELS[name](3, pretrained=str(source), **options)
    model = lora(rank=2, alpha=3, targets=["query", "value", "attention/out", "dense_*"])(base)
    leaves, random = tree.leaves_by_path(jax.jit(model.init)(KEY, images)), np.random.default_rng(0)
    for path in (path for path in leaves if "/lora_" in path or "classifier" in path):
        leaves[path] = jnp.asarray(random.normal(size=leaves[path].shape, scale=0.1), jnp.float32)
    variables = tree.from_paths(leaves)
    export(tmp_path, model, variables, images, image_size=images.shape[1:3])
    if name == "clip":
        model = model._replace(classify=lambda params, features: features)
    expected = run(model, variables, images)

    def outputs(network):
        with torch.no_grad():
            outputs = network(torch.from_numpy(np.moveaxis(np.array(images), -1, 1).copy()))
        found = outputs.image_embeds if name == "clip" else outputs.logits
        return (found / found.norm(dim=-1, keepdim=True) if name == "clip" else found).numpy()

    merged, adapted, untouched = map(outputs, load(libraries, tmp_path, kind))
    np.testing.assert_allclose(merged, expected, atol=TOLERANCE)
    np.testing.assert_allclose(adapted, expected, atol=TOLERANCE)
    assert np.abs(untouched - expected).max() > 100 * TOLERANCE


@pytest.mark.parametrize(
    "options", [{"use_rslora": True}, {"rank_pattern": {"value": 5}, "alpha_pattern": {"query": 9}}]
)
def test_adapters_made_by_peft_have_the_same_logits(options, libraries, tmp_path):
    torch, transformers, peft = libraries
    save_published(tmp_path / "base", draw(make("bert"), TEXTS), make("bert"))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    config = peft.LoraConfig(
        r=3, lora_alpha=4, target_modules=["query", "value"], modules_to_save=["classifier"], **options
    )
    adapted = peft.get_peft_model(theirs, config).eval()
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.3)
        expected = adapted(torch.from_numpy(np.asarray(TEXTS)).long()).logits.numpy()
    adapted.save_pretrained(tmp_path / "adapters")
    ours = pretrained_lora(str(tmp_path / "adapters"))(make("bert", pretrained=str(tmp_path / "base")))
    found = run(ours, jax.jit(ours.init)(KEY, TEXTS), TEXTS)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
