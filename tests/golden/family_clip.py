"""CLIP against transformers' and OpenAI's code: both towers, and the model whose head the texts make."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy
from flax import linen as nn

from fedjax_het import models
from fedjax_het._internal.keys import make_key
from fedjax_het.models._attention import Block
from fedjax_het.models._clip import ClipImages, ClipSizes, ClipTexts, make_towers
from fedjax_het.models._position_grids import resample_positions
from fedjax_het.models._pretrained import Naming, from_torch, to_torch
from fedjax_het.models._vision_names import CLIP_NAMES
from fedjax_het.types import Array, Params
from tests.golden.cases import Case, Comparison, covers
from tests.golden.family_language import double, plain, shapes_of
from tests.golden.family_vision import images_of, run

FLOAT32 = 1e-4
Comparisons = Iterator[Comparison]


class Towers(NamedTuple):
    """Both towers with the weights of a file, positions of images included, which are resampled when they are read."""

    images: ClipImages
    texts: ClipTexts
    params: Params  # those of texts under "text"
    pixels: np.ndarray
    tokens: np.ndarray

    def run(self, params: Params) -> tuple[Array, dict[str, Array]]:
        """(logits, outputs by the names of the arrays)."""
        outputs, blocks = {}, {"vision": [], "text": []}

        def keep(tower: str):
            def call_layer(call, args, options, about):
                is_block = about.method_name == "__call__" and isinstance(about.module, Block)
                y = call(
                    *args, **(options | {"num_outputs": None} if is_block else options)
                )  # the stored ones are of all tokens
                if is_block:
                    blocks[tower].append(y)
                if about.method_name == "__call__" and about.module.name in ("norm", "projection"):
                    outputs[f"{tower}_{about.module.name}"] = y
                return y

            return nn.intercept_methods(call_layer)

        side = self.images.patch
        grid = (self.pixels.shape[1] // side, self.pixels.shape[2] // side)
        rows = len(params["positions"])
        weights = resample_positions(np.eye(rows), 1, grid, "huggingface")
        own = {**params, "positions": weights @ params["positions"]}
        text = own.pop("text")
        with keep("vision"):
            mask = jnp.ones(len(self.pixels))
            features = self.images.apply({"params": own}, self.pixels, mask, False, method="encode")
        with keep("text"):
            classes = self.texts.apply({"params": text}, self.tokens)
        outputs |= {f"{tower}_block_{index}": y for tower in blocks for index, y in enumerate(blocks[tower])}
        outputs |= {"image_embeds": features, "text_embeds": classes}
        return jnp.exp(params["logit_scale"]) * features @ classes.T, outputs


def load(case: Case, folder: str, state: dict[str, np.ndarray], naming: Naming, sizes: ClipSizes) -> Towers:
    pixels, tokens = images_of(case), case["input_ids"]
    images, texts = make_towers(len(tokens), folder, sizes)
    key = make_key(0)
    side = round((len(state[naming.layers["positions"]]) - 1) ** 0.5) * images.patch
    start = images.init(key, np.zeros((1, side, side, 3)), jnp.ones(1), False, method="encode")["params"]
    start = {**start, "text": texts.init(key, tokens)["params"]}
    params = double(from_torch(state, {"params": start}, naming))["params"]
    return Towers(images, texts, params, pixels, tokens)


@covers("clip", "*")
def towers(case: Case) -> Comparisons:
    is_openai = "openai" in case.name
    base, naming = case, CLIP_NAMES[int(is_openai)]
    if "base_weights" in case.meta:
        base = Case((case.path.parents[1] / case.meta["base_weights"]).with_suffix(".npz"))
    config, file = plain(case.meta["config"]), base.path.with_name(base.meta["weights"])
    state, sizes = safetensors.numpy.load_file(file), openai_sizes(config) if is_openai else {}
    pixels, tokens = images_of(case), case["input_ids"]
    with tempfile.TemporaryDirectory() as folder:
        if not is_openai:
            (Path(folder) / "config.json").write_text(json.dumps(config))
        (Path(folder) / "model.safetensors").write_bytes(file.read_bytes())
        model = models.clip(len(tokens), prompts=tokens.tolist(), pretrained=folder, **sizes)
        variables = model.init(make_key(0), pixels)
        loaded = load(case, folder, state, naming, sizes)
    # A causal tower has no use for the mask: padding follows the end token, and its own outputs are not read.
    is_token = case["attention_mask"].astype(bool) if "attention_mask" in case else np.ones(tokens.shape, bool)
    assert shapes_of(to_torch({"params": loaded.params}, naming)) == plain(base.meta["state_dict_shapes"])

    logits, outputs = loaded.run(loaded.params)
    ours = run(model, double(variables), pixels)
    yield case.compare("logits_per_image", logits)
    yield case.compare("logits_per_image", ours.logits, FLOAT32)  # the head is in float32
    outputs |= {"image_features": outputs["vision_projection"], "text_features": outputs["text_projection"]}
    outputs |= {"vision_pooled": outputs["vision_projection"], "text_pooled": outputs["text_projection"]}
    outputs |= {"text_last_hidden_state": outputs["text_norm"]}
    for name in sorted(outputs.keys() & set(case.matching("*"))):
        is_padded = name.startswith("text_") and case[name].ndim == 3
        part = (lambda x: x[is_token]) if is_padded else (lambda x: x)
        yield case.compare(name, part(np.asarray(outputs[name])), part=part)
    if is_openai:
        return
    yield case.compare("image_embeds", ours.features)
    yield case.compare("text_embeds", variables["params"]["classifier"]["kernel"].T, FLOAT32)

    def loss(params: Params) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(loaded.run(params)[0], case["labels"]).mean()

    value, gradient = jax.jit(jax.value_and_grad(loss))(loaded.params)
    yield case.compare("loss", value)
    gradients = to_torch({"params": gradient}, naming)
    for name in case.matching("grad/*"):
        yield case.compare(name, gradients[name.removeprefix("grad/")])
    yield case.compare("grad_norms", [np.linalg.norm(gradients[key]) for key in case["grad_keys"].tolist()])


def openai_sizes(config: dict[str, Any]) -> ClipSizes:
    return {
        **{"features": config["width"], "heads": config["heads"], "layers": config["layers"], "patch": config["patch"]},
        **{"text_features": config["text_width"], "text_heads": config["text_heads"]},
        **{"text_layers": config["layers"], "text_vocabulary": config["vocab_size"]},
        **{"text_max_length": config["context_length"], "projection": config["embed_dim"]},
    }
