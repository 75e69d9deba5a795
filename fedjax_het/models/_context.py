"""Learned context: trained vectors among the words of the texts that name CLIP's classes."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_het.errors import InputError
from fedjax_het.models._adaptations import split_off
from fedjax_het.models._clip import ClipTexts
from fedjax_het.models._frozen import frozen_by
from fedjax_het.models._model import output_shapes
from fedjax_het.sharing import share_only
from fedjax_het.types import Array, Context, Key, Model, Named, Params, Variables
from fedjax_het.validation import Count, CountOrZero, validate_arguments

Position = Literal["end", "middle", "front"]
LEAF = "context"
_DEVIATION = 0.02
_NUM_TOKENS = 16


class ContextSettings(TypedDict, total=False):
    """The settings of `context`, where they are documented, for algorithms that add a context themselves."""

    num_tokens: Count | None
    position: Position
    per_class: bool
    initial: Sequence[CountOrZero] | None


@validate_arguments
def context(
    num_tokens: Count | None = None,
    *,
    position: Position = "end",
    per_class: bool = False,
    initial: Sequence[CountOrZero] | None = None,
) -> Callable[[Model], Model]:
    """Freeze CLIP, and put trained vectors into the texts that name its classes.

        text of class c:   [start] v_1 ... v_n [name of c] [.] [end],   logits = exp(logit_scale) cos(image, text)

    The leaf params/context [n, feature], or [class, n, feature], begins as N(0, .02^2). All C texts are encoded once in
    each step, whatever the size of the batch, and are cut behind the last end token.

    Args:
        num_tokens: The number n of vectors (default None, 16, or the number of `initial` tokens).
        position: The place of the name: at the "end", in the "middle" of the vectors, or in "front" of them. For the
            last two, the token before the end token must be the full stop that ends a text.
        per_class: Whether each class has vectors of its own.
        initial: Tokens whose embeddings the vectors begin as, such as those of "a photo of a".

    Raises:
        InputError: Numbers are invalid or contradict each other; or, when the model is initialized, it has no text
            tower, or texts with the vectors are longer than its positions.

    References:
        Zhou, Yang, Loy and Liu, Learning to Prompt for Vision-Language Models, IJCV 2022 (CoOp).
    """
    count = count_tokens(num_tokens, initial)

    def adapt(model: Model) -> Model:
        def init(key: Key, inputs: Array) -> Variables:
            variables, num_classes = init_tower("context", model, key, inputs)
            value = start_context(variables["params"], jax.random.fold_in(key, 1), count, initial)
            value = jnp.broadcast_to(value, (num_classes, *value.shape)) if per_class else value
            variables = {**variables, "params": {**variables["params"], LEAF: value}}
            output_shapes(adapted, variables, inputs)
            return variables

        def encode(variables: Variables, inputs: Array, context: Context) -> tuple[tuple[Array, Named], Variables]:
            return model.encode(split_off(variables, LEAF)[1], inputs, context)

        def classify(params: Params, features: Array) -> Array:
            return classify_with_context(model, params, features, params[LEAF], position)

        frozen = frozen_by(model, share_only(f"params/{LEAF}"))
        adapted = frozen._replace(init=init, encode=encode, classify=classify)
        return adapted

    return adapt


def count_tokens(num_tokens: int | None, initial: Sequence[int] | None) -> int:
    """The number of vectors; raises InputError if it differs from that of their initial tokens."""
    if initial is None:
        return num_tokens or _NUM_TOKENS
    if not initial or num_tokens not in (None, len(initial)):
        raise InputError(f"initial: {len(initial)} tokens cannot begin {num_tokens or 'any'} vectors. Omit num_tokens.")
    return len(initial)


def init_tower(name: str, model: Model, key: Key, inputs: Array) -> tuple[Variables, int]:
    """(initial variables, number of classes) of a model with a text tower and without a context."""
    variables = model.init(key, inputs)
    if model.layers(inputs).get("text") is not ClipTexts or LEAF in variables["params"]:
        raise InputError(
            f"{name}: the model has no text tower without context. Take the model clip with prompts and texts='tower'."
        )
    return variables, output_shapes(model, variables, inputs)[1].shape[-1]


def start_context(params: Params, key: Key, count: int, initial: Sequence[int] | None = None) -> Array:
    """Vectors [count, feature] for the text tower: embeddings of the initial tokens, or random."""
    table = params["text"]["embedding"]["embedding"]
    if initial is None:
        return _DEVIATION * jax.random.normal(key, (count, table.shape[1]), table.dtype)
    if max(initial, default=0) >= len(table):
        raise InputError(f"context: the token {max(initial)} is not among the {len(table)} of the text tower.")
    return table[np.asarray(initial, int)]


def classify_with_context(
    model: Model, params: Params, features: Array, vectors: Array, position: Position = "end"
) -> Array:
    """The logits of a model whose texts have `vectors` [count, feature], or [class, count, feature]."""
    vectors = vectors if vectors.ndim == 3 else vectors[None]

    def call_layer(call: Callable, args: tuple, options: dict, about: nn.module.InterceptorContext) -> Any:
        if about.method_name != "__call__" or not isinstance(about.module, ClipTexts):
            return call(*args, **options)
        texts, places = _make_room(args[0], about.module, vectors.shape[1], position)
        return call(texts, vectors, places)

    with nn.intercept_methods(call_layer):
        return model.classify({name: leaves for name, leaves in params.items() if name != LEAF}, features)


def _make_room(tokens: np.ndarray, tower: ClipTexts, count: int, position: Position) -> tuple[np.ndarray, np.ndarray]:
    """(texts with `count` more tokens after the first, the places [text, count] of the vectors)."""
    ends = np.asarray(tower.find_ends(tokens))
    name_lengths = np.zeros_like(ends) if position == "end" else np.maximum(ends - 2, 0)
    num_before, number = count // 2 if position == "middle" else 0, np.arange(count)
    places = 1 + number + np.where(number < num_before, 0, name_lengths[:, None])
    texts = np.repeat(tokens[:, :1], tokens.shape[1] + count, axis=1)
    is_word = np.ones(texts.shape, bool)
    is_word[np.arange(len(tokens))[:, None], places] = False
    texts[is_word] = tokens.ravel()
    length = int(ends.max()) + 1 + count
    if length > tower.max_length:
        raise InputError(
            f"num_tokens: {count} vectors make texts of {length} tokens, and the text tower has {tower.max_length} "
            "positions. Take fewer vectors or shorter prompts."
        )
    return texts[:, :length], places
