"""fedjax_het as a contender: FedAvg through the public interface."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from fedjax_het import algorithms, data, engine, models
from fedjax_het.cli.distributed import layouts
from fedjax_het.cli.distributed.layouts import read_layout
from fedjax_het.models import computed_in
from fedjax_het.types import Model, Variables

from ..workloads import (
    AdaptedWorkload,
    LayeredWorkload,
    RecurrentWorkload,
    ResidualWorkload,
    VisionWorkload,
    Weights,
    Workload,
)
from ..workloads.adapted import ADAPTED
from . import Contender, ContenderSettings, UnusableError


def prepare(work: Workload, settings: ContenderSettings) -> Contender:
    layouts.set_num_cpu_devices(settings.cores)
    on_cores = f"sharded({settings.cores}, 1)" if jax.default_backend() == "cpu" else "vmapped"
    simulation = engine.Simulation(
        algorithms.fedavg(learning_rate=work.learning_rate, batch_size=work.batch_size, shuffle=False),
        with_matmul_precision(settings.precision)(build_model(work)),
        build_federation(work),
        rounds=1_000_000,
        evaluate_every=1,
        layout=read_layout(settings.layout or on_cores),
    )
    state = simulation.start()
    shared = state.server.shared
    trained, frozen = to_params(work)
    server = state.server._replace(shared=_place(trained, shared), frozen=_place(frozen, state.server.frozen))
    state = state._replace(server=server)

    def round() -> None:
        nonlocal state
        state, _ = simulation.advance(state, 1)
        jax.block_until_ready(state)

    def facts() -> dict[str, Any]:
        return {
            "compile_seconds": simulation.cost.compile_seconds,
            "layout": str(simulation.layout),
            "peak_device_mb": measure_peak_device_mb(),
        }

    return Contender(round, lambda: _from_params(work, state.server.shared["params"]), facts=facts)


def with_matmul_precision(precision: str) -> Callable[[Model], Model]:
    """Set the precision of this process's float32 matrix products, and return the matching change of a model.

    JAX computes float32 products in TF32 on GPUs by default. Raises UnusableError for TF32 on other devices.
    """
    has_tf32 = jax.default_backend() == "gpu"
    if precision == "tf32" and not has_tf32:
        raise UnusableError(f"TF32 is not available on a {jax.default_backend()}")
    if has_tf32 and precision != "bfloat16":
        products = {"float32": "highest", "tf32": "tensorfloat32"}[precision]
        jax.config.update("jax_default_matmul_precision", products)
    return computed_in("bfloat16" if precision == "bfloat16" else "float32")


def measure_peak_device_mb() -> float | None:
    """Peak memory of this process on the first device in MB; None if the device does not report it."""
    stats = jax.devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] / 1e6 if stats else None


def build_model(work: Workload, conv: str = "auto") -> Model:
    if isinstance(work, ResidualWorkload):
        return models.resnet18(work.num_classes, norm="batch", stem=work.stem, conv=conv)
    if isinstance(work, RecurrentWorkload):
        return models.lstm(work.num_classes, work.hidden, embedding=work.embedding)
    if isinstance(work, AdaptedWorkload):
        sizes = {name: getattr(work, name) for name in ("features", "layers", "heads", "mlp_size")}
        if isinstance(work, VisionWorkload):
            network = models.vit(work.num_classes, patch=work.patch, **sizes)
        else:
            network = models.llama(work.num_classes, kv_heads=work.kv_heads, vocabulary=work.num_classes, **sizes)
        return models.lora(work.rank, targets=ADAPTED, train_head=isinstance(work, VisionWorkload))(network)
    if not isinstance(work, LayeredWorkload):
        raise UnusableError(f"there is no network for {work.name}")
    if not work.convolutions:
        return models.mlp(work.num_classes, work.units[:-1])
    channels = [layer.features for layer in work.convolutions]
    first = work.convolutions[0]
    return models.cnn(
        work.num_classes, channels, work.units[:-1], kernel=first.kernel, padding=first.padding, conv=conv
    )


def build_federation(work: Workload) -> data.Federation:
    examples = work.examples()
    dataset = data.assemble(
        work.name, examples.inputs, examples.labels, class_names=[str(label) for label in range(work.num_classes)]
    )
    return data.federate(
        dataset,
        lambda labelled, num_clients, rng: list(examples.clients),
        work.num_clients,
        test_fraction=0.0,
        client_test_fraction=0.0,
    )


def _leaf_paths(work: Workload) -> list[tuple[str, ...]]:
    """The paths of the model's leaves, in the order of the workload's weights."""
    if isinstance(work, AdaptedWorkload):
        return [tuple(path.split("/")) for path in work.trained_shapes()]
    if isinstance(work, ResidualWorkload):
        paths = []
        for block, number in (layer.path for layer in work.convolutions):
            conv, norm = (f"{kind}_{number}" if number else kind for kind in ("conv", "norm"))
            paths += [(block, conv, "kernel"), (block, norm, "scale"), (block, norm, "bias")]
    elif isinstance(work, RecurrentWorkload):
        leaves = ("kernel", "recurrent", "bias")
        paths = [("embedding", "embedding"), *((f"lstm_{i}", leaf) for i in range(len(work.hidden)) for leaf in leaves)]
    elif isinstance(work, LayeredWorkload):
        names = [f"conv_{i}" for i in range(len(work.convolutions))]
        names += [f"dense_{i}" for i in range(len(work.units) - 1)]
        paths = [(name, leaf) for name in names for leaf in ("kernel", "bias")]
    else:
        raise UnusableError(f"there is no network for {work.name}")
    return [*paths, ("classifier", "kernel"), ("classifier", "bias")]


def to_params(work: Workload) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters that are trained, and those that are frozen."""
    frozen = {tuple(path.split("/")): leaf for path, leaf in work.frozen().items()}
    return unflatten_dict(dict(zip(_leaf_paths(work), work.initial(), strict=True))), unflatten_dict(frozen)


def _place(params: dict[str, Any], variables: Variables) -> Variables:
    """The variables with these parameters; the leaves have an axis of runs."""
    old = variables.get("params", {})
    placed = jax.tree.map(lambda x, old: jax.device_put(x.reshape(old.shape), old.sharding), params, old)
    return variables | ({"params": placed} if placed else {})


def _from_params(work: Workload, params: dict) -> Weights:
    leaves = flatten_dict(params)
    return [np.asarray(leaves[path])[0] for path in _leaf_paths(work)]
