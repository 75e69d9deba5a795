"""Devices that programs are compiled for without being there: their compilers' descriptions and their peak rates."""

import importlib.util
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, SingleDeviceSharding

from fedjax_het.engine.parallel.layout import AXIS, Layout, chunked, sharded, vmapped
from fedjax_het.errors import InputError

from .costs import Costs

LAYOUTS = ("vmapped", "chunked", "sharded")
DEFAULT_TOPOLOGIES = {"tpu": "v5e:1x1", "cuda": "", "cpu": ""}  # by platform; "" where none is needed
_COMPILERS = {"tpu": ("libtpu", "tpu"), "cuda": ("jax_cuda12_plugin", "cuda12")}  # (package, extra that installs it)


class Chip(NamedTuple):
    """Peak rates of a chip, as its vendor publishes them, without sparsity."""

    products: Mapping[str, float]  # FLOP per second by kind, see `Costs.flop`
    memory: float  # bytes per second of the main memory
    links: float  # bytes per second that it receives from the other chips


def _tpu(bfloat16: float, memory: float, links: float) -> Chip:
    """The rates of a TPU, on which a product in float32 takes one, three or six passes in bfloat16."""
    passes = {"bfloat16": 1, "default": 1, "high": 3, "highest": 6}
    return Chip({kind: bfloat16 / number for kind, number in passes.items()}, memory, links)


def _gpu(bfloat16: float, tf32: float, float32: float, float64: float, memory: float, links: float) -> Chip:
    """The rates of a GPU, on which a product in float32 is one in TF32 unless the highest precision is asked for."""
    products = {"bfloat16": bfloat16, "default": tf32, "high": tf32, "highest": float32, "float64": float64}
    return Chip(products, memory, links)


CHIPS = {
    # docs.cloud.google.com/tpu/docs/v5e, v5p and v6e
    "v5e": _tpu(197e12, 819e9, 200e9),
    "v5p": _tpu(459e12, 2765e9, 600e9),
    "v6e": _tpu(918e12, 1640e9, 448e9),
    # NVIDIA's data sheets: H100 SXM, A100 SXM of 80 GB, L4 and T4 by PCIe; a T4 has neither TF32 nor bfloat16
    "h100": _gpu(989e12, 494e12, 67e12, 67e12, 3350e9, 450e9),
    "a100": _gpu(312e12, 156e12, 19.5e12, 19.5e12, 2039e9, 300e9),
    "l4": _gpu(121e12, 60e12, 30.3e12, 0.47e12, 300e9, 32e9),
    "t4": _gpu(8.1e12, 8.1e12, 8.1e12, 0.25e12, 320e9, 16e9),
}


class Gpu(NamedTuple):
    """What XLA's compiler asks of a GPU: sizes from NVIDIA's data sheets and tables of compute capabilities."""

    name: str
    capability: tuple[int, int]
    processors: int  # streaming multiprocessors
    float32_units: int  # of each processor
    threads: int  # of each processor
    shared_memory: int  # bytes of each processor
    largest_share: int  # bytes of shared memory that a block of threads may ask for
    cache: int  # bytes of the second level
    clock: float  # GHz
    memory: int  # bytes


GPUS = {
    "h100": Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 2048, 228 << 10, 227 << 10, 50 << 20, 1.98, 80 << 30),
    "a100": Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 2048, 164 << 10, 163 << 10, 40 << 20, 1.41, 80 << 30),
    "l4": Gpu("NVIDIA L4", (8, 9), 58, 128, 1536, 100 << 10, 99 << 10, 48 << 20, 2.04, 24 << 30),
    "t4": Gpu("Tesla T4", (7, 5), 40, 64, 1024, 64 << 10, 64 << 10, 4 << 20, 1.59, 16 << 30),
}


class Target(NamedTuple):
    """The devices that are compiled for; none where programs are only lowered."""

    platform: str  # "tpu", "cuda" or "cpu", as JAX names it in `lowering_platforms`
    topology: str
    devices: tuple[Any, ...] = ()

    @property
    def traced_platform(self) -> str:
        """The platform as `tracing_for` names it."""
        return "gpu" if self.platform == "cuda" else self.platform

    @property
    def chip(self) -> Chip | None:
        return CHIPS.get(self.topology.split(":")[0])

    def layout(self, name: str) -> Layout:
        if name == "sharded":
            devices = self.devices or jax.devices()
            return sharded(Mesh(np.array(devices), (AXIS,)))
        return {"vmapped": vmapped, "chunked": chunked(2)}[name]

    def place(self, arguments: Any, layout: Layout) -> Any:
        """The shapes of a program's arguments on these devices; those of a layout with a mesh are there already."""
        if layout.mesh:
            return arguments
        here = SingleDeviceSharding(self.devices[0])
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), arguments)


def find_target(platform: str, topology: str) -> Target:
    """Find the compiler for devices that need not be there.

    Args:
        platform: "tpu", "cuda" or "cpu".
        topology: A TPU's, such as "v5e:2x2"; a number of GPUs on one host, such as "h100:4"; or "", which for "cuda"
            means that programs are only lowered, and for "cpu" this machine.

    Raises:
        InputError: The compiler is not installed, or does not know the topology.
    """
    if platform == "cpu":
        if topology:
            raise InputError(
                f"--topology: '{topology}' is no part of --platform=cpu, which is this machine. Remove it."
            )
        return Target("cpu", "cpu", tuple(jax.devices("cpu")[:1]))
    if platform == "cuda":
        return _find_gpus(topology) if topology else Target("cuda", "cuda")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no metadata server to ask
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # the compiler needs no chip for itself
    options = {"chips_per_host_bounds": (1, 1, 1)} if topology.endswith(":1x1") else {}
    return _load_compiler("tpu", topology, options, "Write v5e:1x1 or v5e:2x2.")


def platform_of(topology: str) -> str:
    """The platform that a topology is of: "cuda" for GPUs that are described here, "tpu" otherwise."""
    return "cuda" if topology.split(":")[0] in GPUS else "tpu"


def estimate_seconds(costs: Costs, chip: Chip) -> float:
    """The roofline: the longer of arithmetic and memory traffic at peak rates, then the collectives.

    Raises:
        KeyError: A kind of product that the chip has no rate for.
    """
    arithmetic = sum(flop / chip.products[kind] for kind, flop in costs.flop.items())
    return max(arithmetic, costs.bytes / chip.memory) + sum(costs.collectives.values()) / chip.links


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def _find_gpus(topology: str) -> Target:
    name, _, number = topology.partition(":")
    known = f"Write {' or '.join(f'{each}:1' for each in GPUS)}, with the number of GPUs behind the colon."
    if name not in GPUS or not number.isdecimal() or not int(number):
        raise InputError(f"--topology: '{topology}' is no number of GPUs that are described here. {known}")
    options = {"target_config": describe_gpu(GPUS[name], CHIPS[name]), "topology": f"1x1x{number}"}
    return _load_compiler("cuda", topology, options, known)


def _load_compiler(platform: str, topology: str, options: Mapping[str, Any], advice: str) -> Target:
    package, extra = _COMPILERS[platform]
    if importlib.util.find_spec(package) is None:
        raise InputError(
            f"--topology: there is no compiler for '{topology}' here. Install it: pip install \"fedjax-het[{extra}]\""
        )
    try:
        found = topologies.get_topology_desc(topology, platform=platform, **options)
    except Exception as error:  # of kinds that the compilers do not document
        raise InputError(f"--topology: no compiler for '{topology}' ({first_line(error)}). {advice}") from error
    return Target(platform, topology, tuple(found.devices))


def describe_gpu(gpu: Gpu, chip: Chip) -> str:
    """The text form of the message by which XLA's compiler is told of a GPU that is not there."""
    device = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 48 << 10,
        "shared_memory_per_core": gpu.shared_memory,
        "shared_memory_per_block_optin": gpu.largest_share,
        "threads_per_core_limit": gpu.threads,
        "core_count": gpu.processors,
        "fpus_per_core": gpu.float32_units,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 2**16 - 1,
        "block_dim_limit_z": 2**16 - 1,
        "memory_bandwidth": int(chip.memory),
        "l2_cache_size": gpu.cache,
        "clock_rate_ghz": gpu.clock,
        "device_memory_size": gpu.memory,
        "registers_per_core_limit": 2**16,
        "registers_per_block_limit": 2**16,
    }
    lines = [f"{key}: {value}" for key, value in device.items()]
    lines.append(f"cuda_compute_capability {{ major: {gpu.capability[0]} minor: {gpu.capability[1]} }}")
    return "\n".join(
        (
            f"gpu_device_info {{ {' '.join(lines)} }}",
            'platform_name: "CUDA"',
            "dnn_version_info { major: 9 minor: 8 }",  # of the CUDA 12 libraries that JAX is built with
            "runtime_version { major: 12 minor: 9 patch: 0 }",
            f'device_description_str: "{gpu.name}"',
        )
    )
