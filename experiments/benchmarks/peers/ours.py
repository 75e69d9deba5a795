"""fedjax_het as a contender: FedAvg through the public interface."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fedjax_het import algorithms, data, engine, models
from fedjax_het.models import computed_in
from fedjax_het.types import Model

from ...configuration.build import read_layout
from ...distributed import cpu_devices
from ..workloads import NUM_CLASSES, Weights, Workload
from . import Contender, ContenderSettings, UnusableError


def prepare(work: Workload, settings: ContenderSettings) -> Contender:
    cpu_devices.set_num_cpu_devices(settings.cores)
    on_cores = f"sharded({settings.cores}, 1)" if jax.default_backend() == "cpu" else "vmapped"
    simulation = engine.Simulation(
        algorithms.fedavg(learning_rate=work.learning_rate, batch_size=work.batch_size, shuffle=False),
        with_matmul_precision(settings.precision)(build_model(work, settings.conv)),
        build_federation(work),
        rounds=1_000_000,
        evaluate_every=1,
        layout=read_layout(settings.layout or on_cores),
    )
    state = simulation.start()
    shared = state.server.shared
    params = jax.tree.map(lambda x, old: jax.device_put(x[None], old.sharding), to_params(work), shared["params"])
    state = state._replace(server=state.server._replace(shared=shared | {"params": params}))

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
    if not work.convolutions:
        return models.mlp(NUM_CLASSES, work.units[:-1])
    channels = [layer.features for layer in work.convolutions]
    first = work.convolutions[0]
    return models.cnn(NUM_CLASSES, channels, work.units[:-1], kernel=first.kernel, padding=first.padding, conv=conv)


def build_federation(work: Workload) -> data.Federation:
    examples = work.examples()
    dataset = data.assemble(
        work.name, examples.inputs, examples.labels, class_names=[str(label) for label in range(NUM_CLASSES)]
    )
    return data.federate(
        dataset,
        lambda labelled, num_clients, rng: list(examples.clients),
        work.num_clients,
        test_fraction=0.0,
        client_test_fraction=0.0,
    )


def _layer_names(work: Workload) -> list[str]:
    """Names of the submodules in the order of the workload's layers."""
    convolutions = [f"conv_{i}" for i in range(len(work.convolutions))]
    return [*convolutions, *(f"dense_{i}" for i in range(len(work.units) - 1)), "classifier"]


def to_params(work: Workload) -> dict[str, dict[str, np.ndarray]]:
    weights = work.initial()
    pairs = zip(weights[::2], weights[1::2], strict=True)
    return {
        name: {"kernel": kernel, "bias": bias} for name, (kernel, bias) in zip(_layer_names(work), pairs, strict=True)
    }


def _from_params(work: Workload, params: dict) -> Weights:
    return [np.asarray(params[name][part])[0] for name in _layer_names(work) for part in ("kernel", "bias")]
