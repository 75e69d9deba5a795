"""Vision transformers against timm's and transformers', from the published file on."""

import json
import tempfile
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from fedjax_het import models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.client.optimizers import local_optimizer
from fedjax_het.models._attention import Block
from fedjax_het.models._position_grids import resample_positions
from fedjax_het.models._pretrained import Naming, to_torch
from fedjax_het.models._vision_names import TIMM_NAMES, VIT_NAMES
from fedjax_het.types import Array, Context, Leaf, Model, Params, Variables
from tests.golden.cases import Case, Comparison, covers
from tests.golden.family_language import compare_adapters, double, plain

Comparisons = Iterator[Comparison]
FLOAT32, RESAMPLED = 1e-4, 1e-5  # timm resamples in float32
POOLING = {"timm_s1_avg": "avg", "hf_s1_pooler": "pooler", "hf_s2_interpolate": "pooler"}
POOLING |= {"hf_s5_dinov2_cls": "token_and_mean"}
POSITIONS = "params/positions"


def images_of(case: Case) -> np.ndarray:
    return np.moveaxis(case["images_nchw"], 1, -1)


class Run(NamedTuple):
    """The outputs of a network."""

    features: Array
    logits: Array
    blocks: list[Array]
    normed: Array  # all tokens after the last norm, or the last block where norms follow the pooling


def run(model: Model, variables: Variables, images: np.ndarray) -> Run:
    blocks, normed = [], []

    def keep(call, args, options, about):
        is_block = about.method_name == "__call__" and isinstance(about.module, Block)
        y = call(
            *args, **(options | {"num_outputs": None} if is_block else options)
        )  # the stored ones are of all tokens
        if is_block:
            blocks.append(y)
        if about.method_name == "__call__" and about.module.path == ("norm",):
            normed.append(y)
        return y

    context = Context(jnp.ones(len(images)), jnp.int32(0), make_key(0), False)
    with nn.intercept_methods(keep):
        features, _ = model.encode(variables, images, context)[0]
    return Run(features, model.classify(variables["params"], features), blocks, (normed or blocks)[-1])


# ---- position embeddings ---------------------------------------------------------------------------------------------
@covers("vit", "pos_embed_*")
def positions(case: Case) -> Comparisons:
    stored = case["pos_embed"][0]
    for height, width in case["sizes"].tolist():
        ours = {
            "timm": resample_positions(stored, 1, (height, width), "timm"),
            "hf": resample_positions(stored, 1, (height, width), "huggingface"),
            "dinov2_offset": resample_positions(stored, 1, (height, width), "dinov2"),
            "dinov2_antialias": resample_positions(stored, 1, (height, width), "dinov2_registers"),
        }
        for name, value in ours.items():
            tolerance = RESAMPLED if name == "timm" else None
            yield case.compare(f"{name}_{height}x{width}", value[None], tolerance)
            if len(stored) != len(value):
                yield case.refute(f"x_wrong_bilinear_{height}x{width}", value[None])
    case.excuse_unread("x_wrong_bilinear_*", "equal grids: unchanged in all variants")


# ---- networks --------------------------------------------------------------------------------------------------------
def load(
    case: Case, file: Path, num_classes: int, images: np.ndarray, **options: Any
) -> tuple[Model, Naming, Variables]:
    """The network of a case's meta with the weights of a file, and the names of the file."""
    config = plain(case.meta["config"])
    is_timm = "embed_dim" in config
    if is_timm:
        case.meta.confirm(layer_norm_eps=1e-6, activation="gelu (erf)")
        options |= {"features": config["embed_dim"], "layers": config["depth"], "heads": config["num_heads"]}
        options |= {"patch": config["patch_size"], "mlp_size": config["embed_dim"] * config["mlp_ratio"]}
        options |= {"layer_scale": config.get("init_values"), "epsilon": options.get("epsilon", 1e-6)}
    with tempfile.TemporaryDirectory() as folder:
        if not is_timm:
            config |= {"layer_norm_eps": options.pop("epsilon", config["layer_norm_eps"])}
            (Path(folder) / "config.json").write_text(json.dumps(config))
        (Path(folder) / "model.safetensors").write_bytes(file.read_bytes())
        model = models.MODELS["vit"](num_classes, pretrained=folder, **options)
    naming = TIMM_NAMES if is_timm else VIT_NAMES[1 if config["model_type"] == "vit" else 2]
    return model, naming, model.init(make_key(0), images)


def published(case: Case, naming: Naming, variables: Variables) -> dict[str, np.ndarray]:
    """The state dict, with the prefix and the head that the case has."""
    known = case.meta["state_dict_shapes"]
    state = to_torch(variables, naming)
    state = {key if key in known else key.removeprefix(naming.prefix): leaf for key, leaf in state.items()}
    return {key: leaf for key, leaf in state.items() if key in known or not key.startswith(("head", "classifier"))}


@covers("vit", "*")
def networks(case: Case) -> Comparisons:
    images, num_classes = images_of(case), case["logits"].shape[1] if "logits" in case else 5
    options = {"pooling": POOLING.get(case.name, "token"), "distilled": "distilled" in case.name}
    file = case.path.with_name(case.meta["weights"])
    is_resampled = case.name in ("timm_s7_larger", "hf_s2_interpolate")
    tolerance = RESAMPLED if case.name == "timm_s7_larger" else None
    for is_fused in (False, True):
        model, naming, variables = load(case, file, num_classes, images, fused_qkv=is_fused, **options)
        ours = run(model, double(variables), images)
        for index, block in enumerate(ours.blocks):
            yield case.compare(f"block_{index}", block, tolerance)
        outputs = dict.fromkeys(("features", "pooler_output"), ours.features) | {"logits": ours.logits}
        outputs |= {"tokens_normed": ours.normed, "last_hidden_state": ours.normed}
        for name in outputs.keys() & set(case.matching("*")):
            yield case.compare(name, outputs[name], tolerance)
        yield from _compare_gradients(case, model, naming, double(variables), images, tolerance)
    with jax.enable_x64(False):
        single = run(model, variables, images.astype(np.float32))
        name, value = ("logits", single.logits) if "logits" in case else ("block_1", single.blocks[1])
        yield case.compare(name, value, FLOAT32)
    if "logits_head" in case:
        heads = double(variables)["params"]["classifier"]
        for name, head, features in zip(
            ("logits_head", "logits_head_dist"),
            (heads["class"], heads["distillation"]),
            np.split(np.asarray(ours.features), 2, axis=-1),
            strict=True,
        ):
            yield case.compare(name, features @ head["kernel"] + head["bias"])
    if "logits_eps_1e_12" in case:
        model, _, variables = load(case, file, num_classes, images, epsilon=1e-12, **options)
        yield case.compare("logits_eps_1e_12", run(model, double(variables), images).logits)
    expected = plain(case.meta["state_dict_shapes"])
    if not is_resampled:
        shapes = {key: list(leaf.shape) for key, leaf in published(case, naming, variables).items()}
        ignored = ["embeddings.mask_token", "dinov2.embeddings.mask_token"]
        assert shapes == {key: shape for key, shape in expected.items() if key not in ignored}


def _compare_gradients(
    case: Case, model: Model, naming: Naming, variables: Variables, images: np.ndarray, tolerance: float | None
) -> Comparisons:
    """Gradients of the file's weights; positions are resampled when they are read, which is a linear map."""
    at_file, to_grid = _with_positions_of_file(case, naming, variables, images, model)

    def loss(params: Params) -> Array:
        ours = run(model, {"params": to_grid(params)}, images)
        if "labels" in case:
            return optax.softmax_cross_entropy_with_integer_labels(ours.logits, case["labels"]).mean()
        output = ours.logits if "logits" in case else ours.features
        return jnp.sum(output * case["cotangent"])

    value, gradient = jax.jit(jax.value_and_grad(loss))(at_file)
    yield case.compare("loss", value, tolerance)
    gradients = published(case, naming, {"params": gradient})
    for name in case.matching("grad/*"):
        yield case.compare(name, gradients[name.removeprefix("grad/")], tolerance)
    in_file = {".mlp.fc1.": ".intermediate.dense.", ".mlp.fc2.": ".output.dense."}  # transformers 5 renames them
    for old, new in in_file.items():
        gradients |= {key.replace(new, old): value for key, value in gradients.items() if ".attention." not in key}
    norms = [np.linalg.norm(gradients[key]) for key in case["grad_keys"].tolist()]
    yield case.compare("grad_norms", norms, tolerance)


def _with_positions_of_file(
    case: Case, naming: Naming, variables: Variables, images: np.ndarray, model: Model
) -> tuple[Params, Callable[[Params], Params]]:
    shape = next(s for key, s in case.meta["state_dict_shapes"].items() if naming.layers["positions"].endswith(key))
    rows, ours = shape[1], variables["params"]["positions"]
    if rows == len(ours):
        return variables["params"], lambda params: params
    patch = variables["params"]["patches"]["kernel"].shape[0]
    grid = (images.shape[1] // patch, images.shape[2] // patch)
    resampling = "timm" if naming is TIMM_NAMES else "huggingface"
    weights = resample_positions(np.eye(rows), 1, grid, resampling)  # [ours, rows]
    at_file = np.linalg.lstsq(weights, np.asarray(ours), rcond=None)[0]
    return {**variables["params"], "positions": jnp.asarray(at_file)}, lambda params: {
        **params,
        "positions": weights @ params["positions"],
    }


# ---- adapters --------------------------------------------------------------------------------------------------------
def load_base(case: Case, images: np.ndarray, **options: Any) -> tuple[Model, Naming, Variables, Path]:
    """The network of the case whose weights this one begins with, its names, its variables and its file."""
    file = case.path.parents[1] / case.meta["base_weights"]
    return *load(Case(file.with_suffix(".npz")), file, 5, images, **options), file


@covers("lora", "vit_*")
def low_rank(case: Case) -> Comparisons:
    images = images_of(case)
    base, _, variables, _ = load_base(case, images, fused_qkv=True)

    def outputs(model: Model, variables: Variables) -> Array:
        return run(model, variables, images).logits

    yield from compare_adapters(case, base, variables, images, outputs)


def leaves_of(case: Case, layer: str, part: str) -> dict[str, np.ndarray]:
    """The adapter of a case behind one of our layers, as our leaves; its layers are numbered within a block."""
    return {
        f"bottleneck_{part}": case[f"adapter/{layer}.{part}.weight"].T,
        f"bottleneck_{part}_bias": case[f"adapter/{layer}.{part}.bias"],
    }


@covers("tuning", "adapter_*")
def bottlenecks(case: Case) -> Comparisons:
    images, is_houlsby = images_of(case), "houlsby" in case.name
    case.meta.confirm(activation="gelu (erf)")
    base, _, _, _ = load_base(case, images)
    targets = ("attention/out", "dense_1") if is_houlsby else ("dense_1",)
    model = models.bottleneck(case.meta["bottleneck"], targets=targets)(base)
    variables = double(model.init(make_key(0), images))
    yield case.compare("num_trainable", _count_trained(model, variables, "*/bottleneck_*"))
    layers = {f"{block}.{at}": f"block_{block}/{name}" for block in range(2) for at, name in enumerate(targets)}
    leaves = tree.leaves_by_path(variables)
    for theirs, ours in layers.items():
        for part in ("down", "up"):
            stored = leaves_of(case, theirs, part)
            assert {f"params/{ours}/{name}" for name in stored} <= leaves.keys()
            leaves |= {f"params/{ours}/{name}": jnp.asarray(leaf) for name, leaf in stored.items()}
    variables = tree.from_paths(leaves)
    value, gradient = jax.jit(jax.value_and_grad(lambda v: _cross_entropy(case, model, v, images)))(variables)
    yield case.compare("logits", run(model, variables, images).logits)
    yield case.compare("loss", value)
    gradients = tree.leaves_by_path(gradient)
    for theirs, ours in layers.items():
        for part in ("down", "up"):
            kernel, bias = (gradients[f"params/{ours}/bottleneck_{part}{end}"] for end in ("", "_bias"))
            yield case.compare(f"grad/{theirs}.{part}.weight", kernel.T)
            yield case.compare(f"grad/{theirs}.{part}.bias", bias)


def _cross_entropy(case: Case, model: Model, variables: Variables, images: np.ndarray) -> Array:
    logits = run(model, variables, images).logits
    return optax.softmax_cross_entropy_with_integer_labels(logits, case["labels"]).mean()


def _trained_leaves(model: Model, variables: Variables) -> dict[str, Array]:
    leaves = tree.leaves_by_path(variables)
    return {path: leaf for path, leaf in leaves.items() if not any(rule(Leaf(path, None)) for rule in model.frozen)}


def _count_trained(model: Model, variables: Variables, pattern: str = "*") -> int:
    return sum(leaf.size for path, leaf in _trained_leaves(model, variables).items() if fnmatchcase(path, pattern))


@covers("tuning", "vpt_*")
def prompts(case: Case) -> Comparisons:
    images, stored = images_of(case), jnp.asarray(case["prompts"])
    base, _, _, _ = load_base(case, images)
    model = models.visual_prompts(stored.shape[1], deep=case.meta["deep"])(base)
    variables = double(model.init(make_key(0), images))
    assert variables["params"]["prompts"].shape == stored.shape
    variables = {"params": {**variables["params"], "prompts": stored}}
    ours = run(model, variables, images)
    yield case.compare("features", ours.features)
    yield case.compare("logits", ours.logits)
    value, gradient = jax.jit(jax.value_and_grad(lambda v: _cross_entropy(case, model, v, images)))(variables)
    yield case.compare("loss", value)
    yield case.compare("grad_prompts", gradient["params"]["prompts"])
    yield case.compare("grad_head_weight", gradient["params"]["classifier"]["kernel"].T)
    yield case.compare("grad_head_bias", gradient["params"]["classifier"]["bias"])
    yield case.compare("num_trainable", _count_trained(model, variables))


def _train(case: Case, model: Model, images: np.ndarray, num_steps: int) -> tuple[Variables, list[Array]]:
    """Full-batch steps of the optimizer of a case on the trained leaves."""
    given = plain(case.meta["optimizer"])
    optimizer = local_optimizer(None, given["lr"], given.get("momentum", 0.0), given.get("weight_decay", 0.0))
    leaves = tree.leaves_by_path(double(model.init(make_key(0), images)))
    trained = _trained_leaves(model, tree.from_paths(leaves))

    def loss(trained: dict[str, Array]) -> Array:
        return _cross_entropy(case, model, tree.from_paths(leaves | trained), images)

    @jax.jit
    def step(trained, state):
        value, gradient = jax.value_and_grad(loss)(trained)
        updates, state = optimizer.update(gradient, state, trained)
        return optax.apply_updates(trained, updates), state, value

    state, losses = optimizer.init(trained), []
    for _ in range(num_steps):
        trained, state, value = step(trained, state)
        losses.append(value)
    return tree.from_paths(leaves | trained), losses


@covers("tuning", "bitfit_*")
def biases(case: Case) -> Comparisons:
    images = images_of(case)
    base, naming, before, _ = load_base(case, images, fused_qkv=True)
    model = models.train_only(("params/classifier/*", "*/bias"))(base)
    after, losses = _train(case, model, images, len(case["losses"]))
    yield case.compare("losses", losses)
    yield case.compare("logits_after", run(model, after, images).logits)
    states = [to_torch(variables, naming) for variables in (double(before), after)]
    changed = {key for key in states[0] if not np.array_equal(*(state[key] for state in states))}
    assert changed == set(case["trained_keys"].tolist())
    for key in sorted(changed):
        yield case.compare(f"after/{key}", states[1][key])


@covers("tuning", "linear_probe_*")
def linear_probes(case: Case) -> Comparisons:
    images = images_of(case)
    base, _, before, _ = load_base(case, images)
    model = models.train_only("params/classifier/*")(base)
    after, _ = _train(case, model, images, 5)
    yield case.compare("features", run(model, double(before), images).features)
    yield case.compare("head_weight", after["params"]["classifier"]["kernel"].T)
    yield case.compare("head_bias", after["params"]["classifier"]["bias"])
    yield case.compare("logits_after", run(model, after, images).logits)
