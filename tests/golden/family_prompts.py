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
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fedotp, fedpgp, promptfl
from fedjax_het.client.objectives import text_contrastive
from fedjax_het.engine.round import server_step
from fedjax_het.models._clip import ClipTexts
from fedjax_het.models._context import classify_with_context
from fedjax_het.models._personal_context import transport_plan
from fedjax_het.problem import Problem
from fedjax_het.types import Array, Batch, Broadcast, ClientView, Model, Params
from tests.golden.cases import FLOAT32, Case, Comparison, covers
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
            self.start = double(self.model.init(make_key(0), self.images))["params"]
        self.table = self.start["text"]["embedding"]["embedding"]

    def logits(self, vectors) -> Array:
        return run(self.model, {"params": {**self.start, "context": vectors}}, self.images).logits

    def loss_and_gradient(self, case: Case, vectors) -> tuple[Array, Params]:
        def loss(vectors):
            return optax.softmax_cross_entropy_with_integer_labels(self.logits(vectors), case["labels"]).mean()

        return jax.jit(jax.value_and_grad(loss))(jax.tree.map(jnp.asarray, vectors))


def direction(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


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


@covers("fedotp", "cot_*")
@covers("fedotp", "sinkhorn_*")
def transported_contexts(case: Case) -> Comparisons:
    options = plain(case.meta["options"])
    mass = options.get("top_percent") if options["ot"] == "COT" else None
    given = {"epsilon": options["eps"], "mass": mass, "num_tokens": options["n_ctx"], "num_own": options["n"] - 1}
    vectors = {"shared": case["ctx"][:1], "own": case["ctx"][1:]}

    def prompt(iterations: int) -> Prompted:
        return Prompted(case, options["n_ctx"], fedotp(iterations=iterations, **given).adapt)

    prompted = prompt(1)
    features = run(prompted.model, {"params": prompted.start}, prompted.images).features
    patches = lambda x: np.moveaxis(direction(x[1:]), 0, 1)  # noqa: E731
    yield case.compare("image_tokens", features, part=patches)
    scale = jnp.exp(prompted.start["logit_scale"])
    texts = [classify_with_context(prompted.base, prompted.start, features.reshape(-1, 20), v) for v in case["ctx"]]
    similarity = np.moveaxis(np.stack(texts, -1).reshape(*features.shape[:2], -1, len(texts)), 2, 1) / scale
    yield case.compare("similarity", similarity)
    # The code stops at a change of the other scaling below the threshold, in the mean over the batch.
    plans = (transport_plan(similarity, options["eps"], mass, count) for count in range(1, options["max_iter"] + 1))
    distances = [float(np.max(np.abs(plan - case["transport"]))) for plan in plans]
    num_iterations = 1 + int(np.argmin(np.asarray(distances) > 1e-12))
    yield case.compare("transport", transport_plan(similarity, options["eps"], mass, num_iterations))
    stopped = prompt(num_iterations)
    yield case.compare("logits", stopped.logits(vectors))
    loss, gradient = stopped.loss_and_gradient(case, vectors)
    yield case.compare("loss", loss)
    yield case.compare("grad_ctx", np.concatenate([gradient["shared"], gradient["own"]]))


@covers("fedotp", "agg_*")
def means_of_shared_contexts(case: Case) -> Comparisons:
    chosen, counts = case["selected"], case["n_samples"]
    vectors = case["ctx"][chosen]
    update = aggregate(fedotp().aggregator, vectors[:, :1], counts[chosen])
    yield case.compare("global_ctx", update)
    personal = np.concatenate([np.repeat(update[None], len(counts), axis=0), case["ctx"][:, 1:]], axis=1)
    yield case.compare("personal", personal)


@covers("fedpgp", "loss_*")
def low_rank_contexts(case: Case) -> Comparisons:
    rank, num_vectors = case.meta["bottleneck"], case["sigma"].shape[1]
    fillers = case["token_ids"][0, 1 : 1 + num_vectors].tolist()
    algorithm = fedpgp(case.meta["mu"], case.meta["temperature"], num_tokens=num_vectors, rank=rank, reference=fillers)
    prompted = Prompted(case, num_vectors, algorithm.adapt)
    vectors = {"shared": case["sigma"][0], "u": case["U"][0], "v": case["V"][0]}
    scale, size = jnp.exp(prompted.start["logit_scale"]), case["text_zero"].shape[1]
    texts = classify_with_context(prompted.base, prompted.start, jnp.eye(size), prompted.table[prompted.fillers])
    frozen = texts.T / scale  # as the model computes it in float32
    yield case.compare("text_zero", prompted.start["context"]["reference"], FLOAT32, part=direction)
    batch = Batch(jnp.asarray(prompted.images), jnp.asarray(case["labels"]), jnp.ones(len(case["labels"])))
    problem = Problem(prompted.model, algorithm.objective, lambda images: images)
    view = ClientView(Broadcast(jnp.int32(0), {}, {}), {}, {}, None, {}, {}, (), {}, jnp.zeros(()))

    def forward(vectors):
        params = {**prompted.start, "context": {**vectors, "reference": frozen}}
        return problem.forward(params, {}, batch, view, make_key(0))

    def loss(vectors):
        return sum(term(forward(vectors)) for term in algorithm.objective)

    done = forward(vectors)
    yield case.compare("logits", done.outputs.logits)
    for name, ours in {"text_zero": "reference", "text_sigma": "shared", "text_full": "whole"}.items():
        yield case.compare(name, done.outputs.extras[ours], part=direction)
    yield case.compare("contrastive", text_contrastive(1.0, case.meta["temperature"])(done))
    value, gradient = jax.jit(jax.value_and_grad(loss))(jax.tree.map(jnp.asarray, vectors))
    yield case.compare("loss", value)
    for name, ours in {"grad_sigma": "shared", "grad_U": "u", "grad_V": "v"}.items():
        yield case.compare(name, gradient[ours][None])


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
