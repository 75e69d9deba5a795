"""CLIP: images classified by the texts that name their classes.

Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021. arXiv:2103.00020
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.models._attention import Activation, Attention, Block
from fedjax_het.models._dense import Dense, multiply, param
from fedjax_het.models._model import NumClasses, from_flax
from fedjax_het.models._norms import LayerNorm
from fedjax_het.models._pretrained import Naming
from fedjax_het.models._published import starting_from
from fedjax_het.models._tokens import check_heads, check_tokens
from fedjax_het.models._vision_names import CLIP_NAMES
from fedjax_het.models._vit import Pooling, VisionTransformer, fit_positions
from fedjax_het.models._weight_files import StateDict, complete_sizes
from fedjax_het.types import Array, HostArray, Key, Model, Variables
from fedjax_het.validation import Count, CountOrZero, Positive, validate_arguments

_LARGEST_ID = 2  # an end token that stands for the largest token of a text
_ACTIVATIONS: Mapping[str, Activation] = {"quick_gelu": "quick_gelu", "gelu": "gelu"}
_TOWER_KEYS = {
    "features": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp_size": "intermediate_size",
    "epsilon": "layer_norm_eps",
    "activation": "hidden_act",
}
_TEXT_KEYS = {**_TOWER_KEYS, "vocabulary": "vocab_size", "max_length": "max_position_embeddings", "eos": "eos_token_id"}
_KEYS = {
    **{name: f"vision_config.{key}" for name, key in {**_TOWER_KEYS, "patch": "patch_size"}.items()},
    **{f"text_{name}": f"text_config.{key}" for name, key in _TEXT_KEYS.items()},
    "projection": "projection_dim",
}
_USUAL = {
    **{"features": 768, "layers": 12, "heads": 12, "mlp_size": None, "epsilon": 1e-5, "activation": "quick_gelu"},
    **{"text_features": 512, "text_layers": 12, "text_heads": 8, "text_mlp_size": None, "text_epsilon": 1e-5},
    **{"text_activation": "quick_gelu", "text_vocabulary": 49408, "text_max_length": 77, "text_eos": _LARGEST_ID},
    **{"patch": 32, "projection": 512},
}


class ClipImages(VisionTransformer):
    """The image tower; features are projected and L2-normalized, logits exp(logit_scale) cos(feature, class).

    The classes are those of a dense head, or the outputs of the text tower `text` for the tokens of each class.
    """

    projection: int = 512
    text: "ClipTexts | None" = None
    tokens: tuple[tuple[int, ...], ...] = ()

    def setup(self):
        if self.text is None:
            self.classifier = Dense(self.num_classes, use_bias=False)
        self.logit_scale = param(self, "logit_scale", nn.initializers.constant(math.log(1 / 0.07)), ())

    def pool(self, x: Array, pooling: Pooling | Literal["patches"] | None = None) -> Array:
        return normalize(Dense(self.projection, use_bias=False, name="projection")(super().pool(x, pooling)))

    def classify(self, features: Array) -> Array:
        if self.text is None:
            return jnp.exp(self.logit_scale) * self.classifier(features)
        return jnp.exp(self.logit_scale) * multiply(features, self.text(np.asarray(self.tokens)).T)


class ClipTexts(nn.Module):
    """The text tower, tokens [text, length] -> [text, projection]: the end token, projected and L2-normalized.

    eos: The end token; 2, as in OpenAI's files, stands for the largest token of a text.
    """

    vocabulary: int
    features: int
    layers: int
    heads: int
    mlp_size: int
    max_length: int
    epsilon: float
    activation: Activation
    eos: int
    projection: int

    @nn.compact
    def __call__(self, tokens: HostArray, context: Array | None = None, places: HostArray | None = None) -> Array:
        """Encode texts whose embeddings at `places` [text, number] are `context` [text or 1, number, feature]."""
        check_tokens("a text tower", tokens, self.max_length)
        norm = partial(LayerNorm, self.epsilon)
        positions = param(self, "positions", nn.initializers.normal(0.01), (self.max_length, self.features))
        x = nn.Embed(self.vocabulary, self.features, name="embedding")(jnp.asarray(tokens))
        if context is not None:
            dtype = jnp.promote_types(x.dtype, context.dtype)
            x = x.astype(dtype).at[jnp.arange(len(tokens))[:, None], places].set(context.astype(dtype))
        x = x + positions[: tokens.shape[1]].astype(x.dtype)
        for index in range(self.layers):
            attention = partial(Attention, self.heads, is_causal=True)
            x = Block(attention, self.mlp_size, norm, self.activation, name=f"block_{index}")(x, False)
        x = norm(name="norm")(x)
        pooled = jnp.take_along_axis(x, self.find_ends(tokens)[:, None, None], axis=1)[:, 0]
        return normalize(Dense(self.projection, use_bias=False, name="projection")(pooled))

    def find_ends(self, tokens: HostArray) -> HostArray:
        """The positions [text] of the end tokens."""
        return (tokens if self.eos == _LARGEST_ID else tokens == self.eos).argmax(axis=1)


def normalize(x: Array) -> Array:
    """x / |x| along the last axis."""
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


class ClipSizes(TypedDict, total=False):
    """The sizes of both towers."""

    features: Count
    layers: Count
    heads: Count
    mlp_size: Count
    patch: Count
    epsilon: Positive
    text_features: Count
    text_layers: Count
    text_heads: Count
    text_mlp_size: Count
    text_vocabulary: Count
    text_max_length: Count
    text_eos: CountOrZero
    projection: Count


@validate_arguments
def clip(
    num_classes: NumClasses,
    *,
    prompts: Sequence[Sequence[CountOrZero]] | None = None,
    texts: Literal["head", "tower"] = "head",
    pretrained: str | None = None,
    **sizes: Unpack[ClipSizes],
) -> Model:
    """CLIP's image tower, with a zero-shot head of the texts that name the classes.

        logits = exp(logit_scale) h T^T / |h|,   T [class, projection] the L2-normalized features of the prompts

    T is the head, params/classifier/kernel (transposed): it is computed once, when the model is initialized, and then
    trained or frozen as other heads are, and the text tower is not part of the model. With texts="tower", the text
    tower is params/text instead, and T is computed in each step, once for the whole batch, as `context` needs it.
    logit_scale has no upper bound here; OpenAI's training cuts it at ln(100). Positions in the file are resampled for
    images of another size.

    Args:
        num_classes: The number of classes, tags, ranks or targets.
        prompts: The tokens [class, length] of a text for each class, such as "a photo of a dog.", with start and end
            token and padding (default None, a random head).
        texts: Whether the prompts make the "head" once, or the text "tower" stays in the model (default "head").
        pretrained: A directory with config.json and weights, or a file of weights, with the names of Hugging Face or of
            OpenAI; see `read_state_dict`.
        features: The width of the residual stream of images (default: that of config.json, or else of ViT-B/32, as for
            all sizes).
        layers: The number of blocks.
        heads: The number of attention heads.
        mlp_size: The number of hidden units of each block.
        patch: Height and width of a patch.
        epsilon: The constant in norms of both towers.
        text_features: The width of the residual stream of texts.
        text_layers: The number of blocks.
        text_heads: The number of attention heads.
        text_mlp_size: The number of hidden units of each block.
        text_vocabulary: The number of tokens.
        text_max_length: The number of positions of texts.
        text_eos: The end token, of which the first one of a text is read; 2 is the largest token of a text.
        projection: The number of features of both towers.

    Returns:
        A model for images [batch, height, width, channel].

    Raises:
        InputError: Values are invalid or contradict config.json, or prompts are not tokens of one text per class.

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021. Wortsman et
        al., Robust Fine-tuning of Zero-shot Models, CVPR 2022 (texts as an ordinary head).
    """
    images, text = make_towers(num_classes, pretrained, sizes)
    if prompts is None and texts == "tower":
        raise InputError("texts: without prompts there is nothing for a text tower to encode. Set prompts as well.")
    tokens = np.zeros((1, 1), np.int32) if prompts is None else _check_prompts(prompts, num_classes, text)

    def fit(state: StateDict, naming: Naming, inputs: Array) -> StateDict:
        return fit_positions(state, naming, inputs, images.patch, 1, "huggingface")

    start = starting_from(pretrained, CLIP_NAMES, fit)
    if texts == "tower":
        return start(from_flax(images.clone(text=text, tokens=tuple(map(tuple, tokens.tolist())))))

    def init(key: Key, inputs: Array) -> Variables:
        params = model.init(key, inputs)["params"]
        return {"params": {**params, "text": text.init(jax.random.fold_in(key, 1), tokens)["params"]}}

    def init_head(key: Key, inputs: Array) -> Variables:
        params = dict(whole.init(key, inputs)["params"])
        own = params.pop("text")
        if prompts is not None:
            kernel = jnp.asarray(text.apply({"params": own}, tokens)).T
            params["classifier"] = {"kernel": kernel.astype(params["classifier"]["kernel"].dtype)}
        return {"params": params}

    model = from_flax(images)
    whole = start(model._replace(init=init))
    return whole._replace(init=init_head)


def make_towers(num_classes: int, pretrained: str | None, given: ClipSizes) -> tuple[ClipImages, ClipTexts]:
    """The modules of images and texts."""
    own = dict(given)
    if "epsilon" in own:
        own["text_epsilon"] = own["epsilon"]
    sizes = complete_sizes(pretrained, _KEYS, _USUAL, own)
    text = {name.removeprefix("text_"): sizes.pop(name) for name in list(sizes) if name.startswith("text_")}
    for tower in (sizes, text):
        check_heads(tower["features"], tower["heads"])
        if tower["activation"] not in _ACTIVATIONS:
            raise InputError(
                f"pretrained: hidden_act is {tower['activation']} in '{pretrained}/config.json', and this network "
                f"supports {' or '.join(_ACTIVATIONS)}. Choose other weights."
            )
        tower["activation"], tower["mlp_size"] = (
            _ACTIVATIONS[tower["activation"]],
            tower["mlp_size"] or 4 * tower["features"],
        )
    images = ClipImages(num_classes, is_normed_first=True, use_patch_bias=False, **sizes)
    return images, ClipTexts(**text, projection=sizes["projection"])


def _check_prompts(prompts: Sequence[Sequence[int]], num_classes: int, texts: ClipTexts) -> np.ndarray:
    if len(prompts) != num_classes or len({len(row) for row in prompts}) != 1:
        raise InputError(
            f"prompts: expected the tokens of {num_classes} texts, one per class, padded to one length, and got "
            f"{len(prompts)} texts of lengths {sorted({len(row) for row in prompts})}."
        )
    tokens = np.asarray(prompts, np.int32)
    if tokens.shape[1] > texts.max_length or tokens.max(initial=0) >= texts.vocabulary:
        raise InputError(
            f"prompts: {tokens.shape[1]} tokens up to {tokens.max(initial=0)}, and the text tower has "
            f"{texts.max_length} positions and {texts.vocabulary} tokens. Use the tokenizer of these weights."
        )
    without_end = ~np.any(tokens == texts.eos, axis=1)
    if texts.eos != _LARGEST_ID and without_end.any():
        raise InputError(
            f"prompts: the text of class {np.argmax(without_end)} lacks the end token {texts.eos}. Add it, or cut the "
            "text before it."
        )
    return tokens
