"""Networks against PyTorch's: outputs, gradients and running statistics, from weights that follow from their names."""

import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy

from fedjax_het.models import MODELS, TORCH_NAMES
from fedjax_het.models.pretrained import read
from fedjax_het.models.state_dict import Naming, from_torch, to_torch
from fedjax_het.types import Array, Context, Model, Params, Variables
from tests.golden.cases import Case, Comparison, covers

NETWORKS = {"resnet18_hw64": "resnet18", "resnet50_hw64": "resnet50", "densenet121_hw64": "densenet121"}
NETWORKS["harmofl_unet_hw32"] = "unet"
FLOAT64, FLOAT32 = 1e-9, 1e-4
# Rounding decides ReLUs behind norms over eight entries a channel: how far PyTorch 2.13's own float32 is off there.
UNSETTLED = {"resnet50_hw64": "3e-4 to 4e-4", "densenet121_hw64": "1.3e-4"}


def weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The state dict that the stored numbers were made with."""
    return {key: _weight(key, shape) for key, shape in shapes.items()}


def _weight(key: str, shape: tuple[int, ...]) -> np.ndarray:
    z = np.random.default_rng(zlib.crc32(key.encode())).standard_normal(shape)
    if key.endswith("num_batches_tracked"):
        return np.zeros(shape, np.int64)
    if len(shape) == 4:
        return z * np.sqrt(2 / np.prod(shape[1:]))
    if len(shape) == 2:
        return z / np.sqrt(shape[1])
    if key.endswith("running_var"):
        return np.exp(0.2 * z)
    return 1 + 0.1 * z if key.endswith("weight") else 0.1 * z


class Passes(NamedTuple):
    """What a network made of a case, in PyTorch's axes and names."""

    evaluated: np.ndarray
    trained: np.ndarray
    loss: np.ndarray
    gradient: dict[str, np.ndarray]
    running: dict[str, np.ndarray]


@covers("models", "*")
def network(case: Case) -> Iterator[Comparison]:
    """Once in float64, once in float32 from the file on: state dict, factory, initialisation."""
    name = NETWORKS[case.name]
    naming, num_classes = TORCH_NAMES[name], case["logits_eval"].shape[1]
    inputs = np.moveaxis(case["input_nchw"], 1, -1)
    shapes = jax.eval_shape(MODELS[name](num_classes).init, jax.random.key(0), inputs)
    empty = jax.tree.map(lambda leaf: np.zeros(leaf.shape), shapes)
    state = weights({key: value.shape for key, value in to_torch(empty, naming).items()})
    assert set(state) == set(case["state_dict_keys"])
    assert sum(leaf.size for leaf in jax.tree.leaves(empty["params"])) == case["n_params"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        safetensors.numpy.save_file(state, path)
        model, variables = MODELS[name](num_classes), from_torch(read(path), empty, naming)
        double = passes(model, variables, inputs, case["labels"], naming)
        with jax.enable_x64(False):
            model, inputs = MODELS[name](num_classes, pretrained=str(path)), inputs.astype(np.float32)
            variables = model.init(jax.random.key(0), inputs)
            single = passes(model, variables, inputs, case["labels"], naming)
    yield from _compared(case, double, FLOAT64)
    yield _gradients(case, double, FLOAT64)
    yield from _compared(case, single, FLOAT32)
    if case.name in UNSETTLED:
        reason = f"held in float64 only: PyTorch's own float32 is off by {UNSETTLED[case.name]} of the largest"
        case.excuse("grad_norms", reason)
    else:
        yield _gradients(case, single, FLOAT32)


def _compared(case: Case, ours: Passes, tolerance: float) -> Iterator[Comparison]:
    yield case.compare("logits_eval", ours.evaluated, tolerance)
    yield case.compare("logits_train", ours.trained, tolerance)
    yield case.compare("loss_train", ours.loss, tolerance)
    sums = [ours.running[key].sum(dtype=np.float64) for key in case["running_keys"]]
    yield case.compare("running_sums_after_one_train_step", sums, tolerance)


def _gradients(case: Case, ours: Passes, tolerance: float) -> Comparison:
    norms = [np.linalg.norm(ours.gradient[key].astype(np.float64)) for key in case["grad_keys"]]
    return case.compare("grad_norms", norms, tolerance)


def passes(model: Model, variables: Variables, inputs: np.ndarray, labels: np.ndarray, naming: Naming) -> Passes:
    state = {name: leaves for name, leaves in variables.items() if name != "params"}

    def logits(params: Params, is_training: bool) -> tuple[Array, Variables]:
        context = Context(jnp.ones(len(inputs), inputs.dtype), jnp.int32(0), jax.random.key(0), is_training)
        (features, _), after = model.encode({"params": params, **state}, inputs, context)
        return model.classify(params, features), after

    def loss(params: Params) -> tuple[Array, tuple[Array, Variables]]:
        trained, after = logits(params, True)
        return optax.softmax_cross_entropy_with_integer_labels(trained, labels).mean(), (trained, after)

    evaluated, _ = jax.jit(logits, static_argnums=1)(variables["params"], False)
    (value, (trained, after)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(variables["params"])
    return Passes(
        np.moveaxis(evaluated, -1, 1),
        np.moveaxis(trained, -1, 1),
        np.asarray(value),
        to_torch({"params": gradient}, naming),
        to_torch(after, naming),
    )
