"""Networks against PyTorch's: outputs, gradients and running statistics, from weights that follow from their names."""

import inspect
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import safetensors.numpy

from fedjax_het._internal.keys import make_key
from fedjax_het.models import MODELS, TORCH_NAMES
from fedjax_het.models._pretrained import Naming, from_torch, to_torch
from fedjax_het.models._weight_files import read_state_dict
from fedjax_het.types import Array, Context, Model, Params, Variables
from tests.golden.cases import Case, Comparison, covers

FLOAT64, FLOAT32 = 1e-9, 1e-4
# Float32 gradients of deep networks: late norms average few entries a channel (eight at 64 pixels, two images), and
# rounding decides the ReLUs behind them, so that PyTorch 2.13's own are off by 1.3e-4 (densenet121_hw64) and 3e-4 to
# 4e-4 (resnet50_hw64) of the largest. How far rounding goes is measured for each file: two float32 runs on images that
# differ in their last digit agree in exact arithmetic to 1e-6, and what they differ by, ten times, is allowed.
ROUNDINGS, MOST = 10, 1e-2


def weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """The state dict of the stored numbers."""
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
    """The results of a network for a case, in PyTorch's axes and names."""

    evaluated: np.ndarray
    trained: np.ndarray
    loss: np.ndarray
    gradient: dict[str, np.ndarray]
    running: dict[str, np.ndarray]


@covers("models", "*")
def network(case: Case) -> Iterator[Comparison]:
    """Once in float64, once in float32 from the file on: state dict, factory, initialisation."""
    inputs, num_classes = np.moveaxis(case["input_nchw"], 1, -1), case["logits_eval"].shape[1]
    name, empty = recognised(case, num_classes, inputs)
    naming = TORCH_NAMES[name]
    state = weights({key: value.shape for key, value in to_torch(empty, naming).items()})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        safetensors.numpy.save_file(state, path)
        model, variables = MODELS[name](num_classes), from_torch(read_state_dict(path), empty, naming)
        double = compiled(model, case["labels"], naming)(variables, inputs)
        with jax.enable_x64(False):
            model, inputs = MODELS[name](num_classes, pretrained=str(path)), inputs.astype(np.float32)
            variables = model.init(make_key(0), inputs)
            run = compiled(model, case["labels"], naming)
            single, nudged = run(variables, inputs), run(variables, np.nextafter(inputs, np.float32(np.inf)))
    yield from _compared(case, double, FLOAT64)
    yield case.compare("grad_norms", _norms(case, double), FLOAT64)
    yield from _compared(case, single, FLOAT32)
    norms = _norms(case, single)
    rounding = np.abs(_norms(case, nudged) - norms).max() / norms.max()
    yield case.compare("grad_norms", norms, float(np.clip(ROUNDINGS * rounding, FLOAT32, MOST)))


def recognised(case: Case, num_classes: int, inputs: np.ndarray) -> tuple[str, Variables]:
    """(the network whose PyTorch state dict has the case's keys and as many parameters, its variables as zeros)."""
    keys, num_params = set(case["state_dict_keys"].tolist()), int(case["n_params"])
    for name, naming in TORCH_NAMES.items():
        if "width" not in inspect.signature(MODELS[name]).parameters:
            continue  # not a network of convolutions
        shapes = jax.eval_shape(MODELS[name](num_classes).init, make_key(0), inputs)
        empty = jax.tree.map(lambda leaf: np.zeros(leaf.shape), shapes)
        size = sum(leaf.size for leaf in jax.tree.leaves(empty["params"]))
        if set(to_torch(empty, naming)) == keys and size == num_params:
            return name, empty
    raise ValueError(f"none of {sorted(TORCH_NAMES)} has the file's state_dict_keys and n_params of {num_params}")


def _compared(case: Case, ours: Passes, tolerance: float) -> Iterator[Comparison]:
    yield case.compare("logits_eval", ours.evaluated, tolerance)
    yield case.compare("logits_train", ours.trained, tolerance)
    yield case.compare("loss_train", ours.loss, tolerance)
    sums = [ours.running[key].sum(dtype=np.float64) for key in case["running_keys"]]
    yield case.compare("running_sums_after_one_train_step", sums, tolerance)


def _norms(case: Case, ours: Passes) -> np.ndarray:
    return np.array([np.linalg.norm(ours.gradient[key].astype(np.float64)) for key in case["grad_keys"]])


def compiled(model: Model, labels: np.ndarray, naming: Naming) -> Callable[[Variables, np.ndarray], Passes]:
    """Both passes as functions of variables and images."""

    def logits(params: Params, state: Variables, inputs: Array, is_training: bool) -> tuple[Array, Variables]:
        context = Context(jnp.ones(len(inputs), inputs.dtype), jnp.int32(0), make_key(0), is_training)
        (features, _), after = model.encode({"params": params, **state}, inputs, context)
        return model.classify(params, features), after

    def loss(params: Params, state: Variables, inputs: Array) -> tuple[Array, tuple[Array, Variables]]:
        trained, after = logits(params, state, inputs, True)
        return optax.softmax_cross_entropy_with_integer_labels(trained, labels).mean(), (trained, after)

    evaluate, differentiate = jax.jit(logits, static_argnums=3), jax.jit(jax.value_and_grad(loss, has_aux=True))

    def run(variables: Variables, inputs: np.ndarray) -> Passes:
        state = {name: leaves for name, leaves in variables.items() if name != "params"}
        evaluated, _ = evaluate(variables["params"], state, inputs, False)
        (value, (trained, after)), gradient = differentiate(variables["params"], state, inputs)
        return Passes(
            np.moveaxis(evaluated, -1, 1),
            np.moveaxis(trained, -1, 1),
            np.asarray(value),
            to_torch({"params": gradient}, naming),
            to_torch(after, naming),
        )

    return run
