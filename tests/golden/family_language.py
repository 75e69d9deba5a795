"""Language networks against transformers', from configuration and weights on; and adapters of them against peft's."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy
from flax import linen as nn

from fedjax_het import models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.models import MODELS, TORCH_NAMES, Naming
from fedjax_het.models._attention import Block
from fedjax_het.models._pretrained import to_torch
from fedjax_het.models._tokens import count_positions
from fedjax_het.types import Array, Context, Leaf, Model, Params, Variables
from tests.golden.cases import Case, Comparison, covers
from tests.golden.metadata import Metadata

Comparisons = Iterator[Comparison]
ROUNDINGS = 10  # of the float32 network that was run beside the stored one
NOT_A_TARGET = -100


def plain(table: Metadata | Any) -> Any:
    return {key: plain(value) for key, value in table.items()} if isinstance(table, Metadata) else table


class Loaded(NamedTuple):
    """A network of a case, from its own directory of config.json and weights."""

    model: Model
    naming: Naming
    tokens: np.ndarray
    variables: Variables  # in float32

    def __call__(self, variables: Variables, model: Model | None = None) -> Array:
        """[batch, class] or [batch, length, class]."""
        model = model or self.model
        features, _ = model.encode(variables, self.tokens, context(self.tokens))[0]
        return model.classify(variables["params"], features)

    def run(self, params: Params) -> tuple[Array, Array, list[Array]]:
        """(features, logits, outputs of the blocks)."""
        blocks = []

        def keep(call, args, options, about):
            y = call(*args, **options)
            if isinstance(about.module, Block) and about.method_name == "__call__":
                blocks.append(y)
            return y

        with nn.intercept_methods(keep):
            features, _ = self.model.encode({"params": params}, self.tokens, context(self.tokens))[0]
        return features, self.model.classify(params, features), blocks


def context(tokens: np.ndarray) -> Context:
    return Context(jnp.ones(len(tokens)), jnp.int32(0), make_key(0), False)


def double(variables: Variables) -> Variables:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), variables)


def load(base: Case, file: Path, num_classes: int, tokens: np.ndarray, outputs: str | None) -> Loaded:
    """The network of base's meta with the weights of a file."""
    config = plain(base.meta["config"])
    options = {"outputs": outputs} if config["model_type"] in ("gpt2", "llama", "qwen2") else {}
    name = "llama" if config["model_type"] == "qwen2" else config["model_type"]
    naming = TORCH_NAMES[name][outputs] if options else TORCH_NAMES[name]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        (Path(folder) / "model.safetensors").write_bytes(file.read_bytes())
        model = MODELS[name](num_classes, pretrained=folder, **options)
    return Loaded(model, naming, tokens, model.init(make_key(0), tokens))


def load_case(case: Case, num_classes: int, outputs: str | None = None) -> tuple[Loaded, np.ndarray]:
    """(the network, which positions hold tokens)."""
    is_token = case["attention_mask"].astype(bool)
    tokens = np.where(is_token, case["input_ids"], -1)
    if "token_type_ids" in case:
        tokens = np.stack([tokens, case["token_type_ids"]], axis=-1)
    loaded = load(case, case.path.with_name(case.meta["weights"]), num_classes, tokens, outputs)
    assert shapes_of(published(loaded.variables, loaded.naming, case)) == plain(case.meta["state_dict_shapes"])
    return loaded, is_token


def published(variables: Variables, naming: Naming, case: Case) -> dict[str, np.ndarray]:
    """The state dict; its keys have the network's prefix where those of the case have it, too."""
    prefix = "" if any(key.startswith(naming.prefix) for key in case.meta["state_dict_shapes"]) else naming.prefix
    state = to_torch(variables, naming)
    return {key.removeprefix(prefix): leaf for key, leaf in state.items() if prefix == "" or key.startswith(prefix)}


def shapes_of(state: Mapping[str, np.ndarray]) -> dict[str, list[int]]:
    return {key: list(value.shape) for key, value in state.items()}


def compare_gradient(case: Case, loaded: Loaded, loss: Callable[[Params], Array]) -> Comparisons:
    value, gradient = jax.jit(jax.value_and_grad(loss))(double(loaded.variables)["params"])
    gradients = published({"params": gradient}, loaded.naming, case)
    yield case.compare("loss", value)
    for name in case.matching("grad/*"):
        yield case.compare(name, gradients[name.removeprefix("grad/")])
    yield case.compare("grad_norms", [np.linalg.norm(gradients[key]) for key in case["grad_keys"]])


def compare_forward(case: Case, loaded: Loaded, is_token: np.ndarray, array: str = "logits") -> Comparisons:
    """Blocks, and the logits or another array; at padding, stored values are 0 and ours are arbitrary."""
    unpadded = lambda x: x[is_token] if x.shape[:2] == is_token.shape and x.ndim == 3 else x  # noqa: E731
    features, logits, blocks = loaded.run(double(loaded.variables)["params"])
    for index, block in enumerate(blocks):
        yield case.compare(f"block_{index}", np.asarray(block)[is_token], part=unpadded)
    ours = np.asarray(features if array == "pooler_output" else logits)
    yield case.compare(array, unpadded(ours), part=unpadded)
    with jax.enable_x64(False):
        single = np.asarray(loaded.run(loaded.variables["params"])[1])
    tolerance = ROUNDINGS * case.meta["float32_error"] if "float32_error" in case.meta else 1e-5
    if array == "logits":
        yield case.compare(array, unpadded(single), tolerance, part=unpadded)
    if "position_ids" in case:
        first = 2 if loaded.naming.prefix == "roberta." else 0
        positions = np.asarray(count_positions(is_token))[is_token] + first
        yield case.compare("position_ids", positions, part=lambda x: x[is_token])
    for name in case.matching("x_wrong_*_logits"):
        if np.array_equal(case[name], case["logits"]):
            case.excuse(name, "equal to the right array: without a mask, padding on the left cannot be told here")
        else:
            yield case.refute(name, unpadded(ours), part=unpadded)


@covers("bert", "*_s0")
@covers("gpt2", "*_cls")
@covers("llama", "*_cls")
def classifiers(case: Case) -> Comparisons:
    loaded, is_token = load_case(case, case["logits"].shape[1], "last")
    yield from compare_forward(case, loaded, is_token)

    def loss(params: Params) -> Array:
        return optax.softmax_cross_entropy_with_integer_labels(loaded({"params": params}), case["labels"]).mean()

    yield from compare_gradient(case, loaded, loss)


@covers("bert", "*_hidden")
def encoders_without_head(case: Case) -> Comparisons:
    loaded, is_token = load_case(case, 2)
    yield from compare_forward(case, loaded, is_token, "pooler_output")
    hidden = lambda params: loaded.run(params)[2][-1]  # noqa: E731
    ours = np.asarray(hidden(double(loaded.variables)["params"]))[is_token]
    yield case.compare("last_hidden_state", ours, part=lambda x: x[is_token])
    cotangent = case["cotangent"] * is_token[..., None]
    yield from compare_gradient(case, loaded, lambda params: jnp.sum(hidden(params) * cotangent))


@covers("gpt2", "*")
@covers("llama", "*")
def language_models(case: Case) -> Comparisons:
    loaded, is_token = load_case(case, case["logits"].shape[-1], "every")
    yield from compare_forward(case, loaded, is_token)
    labels = case["labels"]
    is_target = labels != NOT_A_TARGET

    def loss(params: Params) -> Array:
        logits, following = loaded({"params": params})[:, :-1], np.maximum(labels[:, 1:], 0)
        values = optax.softmax_cross_entropy_with_integer_labels(logits, following)
        return jnp.sum(values * is_target[:, 1:]) / jnp.sum(is_target[:, 1:])

    yield case.compare("num_targets", is_target[:, 1:].sum())
    yield from compare_gradient(case, loaded, loss)
    value = loss(double(loaded.variables)["params"])
    for name in ("x_wrong_unshifted_loss", "x_wrong_mean_of_sequence_means_loss"):
        yield case.refute(name, value)
    for name in case.matching("default_positions_logits"):
        hold = case.compare if case.family == "llama" else case.refute  # rotary positions are relative
        logits = np.asarray(loaded(double(loaded.variables)))[is_token]
        yield hold(name, logits, part=lambda x: x[is_token])


# ---- adapters --------------------------------------------------------------------------------------------------------
def compare_adapters(
    case: Case, base: Model, base_variables: Variables, inputs: np.ndarray, run: Callable[[Model, Variables], Array]
) -> Comparisons:
    """A network with the adapters of a file of peft, which is written again; `run` returns the outputs."""
    config, file = case.meta["adapter_config"], case.path.with_name(case.meta["weights"])
    config.confirm(lora_dropout=0.0, bias="none", rank_pattern={}, alpha_pattern={}, task_type=None, peft_type="LORA")
    config.confirm(use_dora=False, init_lora_weights=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "adapter_config.json").write_text(json.dumps(plain(config)))
        (Path(folder) / "adapter_model.safetensors").write_bytes(file.read_bytes())
        model = models.pretrained_lora(folder, train_head=bool(config["modules_to_save"]))(base)
    variables = model.init(make_key(0), inputs)
    trained = [path for path in tree.paths(variables) if not any(rule(Leaf(path, None)) for rule in model.frozen)]

    def save(variables: Variables) -> tuple[Mapping[str, np.ndarray], Mapping[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            assert models.save_adapters(Path(folder), variables, model, trained) == []
            written = json.loads((Path(folder) / "adapter_config.json").read_text())
            return safetensors.numpy.load_file(Path(folder) / "adapter_model.safetensors"), written

    (again, written), read = save(variables), safetensors.numpy.load_file(file)
    jax.tree.map(np.testing.assert_array_equal, dict(again), dict(read))
    assert shapes_of(again) == plain(case.meta["state_dict_shapes"])
    assert written["target_modules"] == sorted(case["target_modules_matched"].tolist())
    assert written["r"] == config["r"] and written["fan_in_fan_out"] == config["fan_in_fan_out"]
    assert bool(written["modules_to_save"]) == bool(config["modules_to_save"])

    full = double(variables)
    yield case.compare("outputs", run(model, full))
    yield case.compare("outputs_merged", run(base, models.merge_adapters(model, full)))
    yield case.compare("outputs_without_adapter", run(base, double(base_variables)))
    found, _ = save(jax.grad(lambda variables: jnp.sum(run(model, variables) * case["cotangent"]))(full))
    for name in case.matching("grad/*"):
        yield case.compare(name, found[name.removeprefix("grad/")])
    assert set(case["trainable_keys"].tolist()) == found.keys()
    yield case.compare("trainable_grad_norms", [np.linalg.norm(found[key]) for key in case["trainable_keys"].tolist()])
    yield case.compare("num_trainable", sum(leaf.size for leaf in found.values()))
    # modules_to_save are in peft's network twice: as they were, and trained
    whole = sum(leaf.size for key, leaf in found.items() if ".lora_" not in key)
    yield case.compare("num_total", sum(leaf.size for leaf in jax.tree.leaves(full)) + whole)


@covers("lora", "gpt2_*")
@covers("lora", "llama_*")
@covers("lora", "roberta_*")
def adapted_networks(case: Case) -> Comparisons:
    base_file = case.path.parents[1] / case.meta["base_weights"]
    base = Case(base_file.with_suffix(".npz"))
    loaded = load(base, base_file, case["outputs"].shape[-1], case["input_ids"], "every")

    def run(model: Model, variables: Variables) -> Array:
        return loaded(variables, model)

    yield from compare_adapters(case, loaded.model, loaded.variables, loaded.tokens, run)
