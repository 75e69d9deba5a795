"""Prompts of CLIP against the authors' classes, on the tiny towers of the cases of CLIP."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from fedjax_het import models
from fedjax_het.algorithms import promptfl
from fedjax_het.engine.round import server_step
from fedjax_het.models._clip import ClipTexts
from fedjax_het.models._context import classify_with_context
from fedjax_het.types import Array, Model, Params
from tests.golden.cases import Case, Comparison, covers
from tests.golden.family_clip import openai_sizes
from tests.golden.family_language import double, plain
from tests.golden.family_vision import images_of, run
from tests.views import server_view

Comparisons = Iterator[Comparison]


class Prompted:
    """The model of a case. Its tokens have fillers in the places of the context, which are taken out."""

    def __init__(self, case: Case, num_vectors: int, adapt: Callable[[Model], Model]):
        tokens = case["token_ids"][: len(case.meta["classnames"])]
        self.fillers = tokens[0, 1 : 1 + num_vectors]
        own = np.concatenate([tokens[:, :1], tokens[:, 1 + num_vectors :]], axis=1)
        weights = case.path.parents[1] / case.meta["base_weights"]
        config = plain(Case(weights.with_suffix(".npz")).meta["config"])
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "model.safetensors").write_bytes(weights.read_bytes())
            self.base = models.clip(
                len(own), prompts=own.tolist(), texts="tower", pretrained=folder, **openai_sizes(config)
            )
            self.model, self.images = adapt(self.base), images_of(case)
            self.start = double(self.model.init(jax.random.key(0), self.images))["params"]
        self.table = self.start["text"]["embedding"]["embedding"]

    def logits(self, vectors) -> Array:
        return run(self.model, {"params": {**self.start, "context": vectors}}, self.images).logits

    def loss_and_gradient(self, case: Case, vectors) -> tuple[Array, Params]:
        def loss(vectors):
            return optax.softmax_cross_entropy_with_integer_labels(self.logits(vectors), case["labels"]).mean()

        return jax.jit(jax.value_and_grad(loss))(jax.tree.map(jnp.asarray, vectors))


@covers("promptfl", "prompt_*")
def learned_contexts(case: Case) -> Comparisons:
    options, num_vectors = plain(case.meta["options"]), case["ctx"].shape[-2]
    initial = case["token_ids"][0, 1 : 1 + num_vectors].tolist() if options.pop("ctx_init", None) else None
    given = {"position": options.pop("class_token_position", "end"), "per_class": options.pop("csc", False)}
    assert not options
    given |= {"initial": initial} if initial else {"num_tokens": num_vectors}
    prompted, seen = Prompted(case, num_vectors, promptfl(**given).adapt), {}

    def keep(call, args, options, about):
        y = call(*args, **options)
        if isinstance(about.module, ClipTexts) and about.method_name == "__call__":
            seen["text_features"] = y
        if about.module.path == ("text", "block_0") and about.method_name == "__call__":
            seen["prompts"] = args[0] - prompted.start["text"]["positions"][: args[0].shape[1]]
        return y

    if initial:
        yield case.compare("ctx", prompted.start["context"])
    assert prompted.start["context"].shape == case["ctx"].shape
    with nn.intercept_methods(keep):
        logits = prompted.logits(case["ctx"])
    length = seen["prompts"].shape[1]
    yield case.compare("prompts", seen["prompts"], part=lambda x: x[:, :length])
    direction = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)  # noqa: E731
    yield case.compare("text_features", seen["text_features"], part=direction)
    features = run(prompted.model, {"params": prompted.start}, prompted.images).features
    yield case.compare("image_features", features, part=direction)
    yield case.compare("logits", logits)
    yield case.refute("x_wrong_unnormalised_logits", logits)
    loss, gradient = prompted.loss_and_gradient(case, case["ctx"])
    yield case.compare("loss", loss)
    yield case.compare("grad_ctx", gradient)
    yield case.compare("ctx_after_sgd", case["ctx"] - 0.002 * gradient)
    fillers = prompted.table[prompted.fillers]
    yield case.compare("zero_shot_logits", classify_with_context(prompted.base, prompted.start, features, fillers))
    case.excuse("name_lens", "the lengths follow from the end tokens")


@covers("promptfl", "agg_*")
def mean_contexts(case: Case) -> Comparisons:
    for name, counts in {"ctx_out": case["n_samples"], "ctx_out_uniform": np.ones(len(case["ctx"]))}.items():
        weighting = "samples" if name == "ctx_out" else "uniform"
        update = aggregate(promptfl(weighting=weighting).aggregator, case["ctx"], counts)
        yield case.compare(name, update)
        for wrong in case.matching("x_wrong_*"):
            if not np.allclose(case[wrong], case[name]):  # that of the last client is right where it is alone
                yield case.refute(wrong, update)
    case.excuse("previous_round_ctx", "a round before has no part in the mean")


def aggregate(aggregator, vectors: np.ndarray, counts: np.ndarray) -> Array:
    """The server's mean of contexts [client, ...]."""
    updates = {"params": {"context": jnp.asarray(vectors)}}
    shared = jax.tree.map(lambda x: jnp.zeros_like(x[0]), updates)
    view = server_view(len(counts), updates=updates, shared=shared, num_examples=counts)
    decided = server_step.aggregate(aggregator, None, aggregator.init(shared, len(counts)), view)[0]
    return decided.update["params"]["context"]
