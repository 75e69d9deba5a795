"""Accelerators that programs are compiled for without being present."""

import importlib.util
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, SingleDeviceSharding

from fedjax_het.engine.parallel.layout import AXIS, Layout, chunked, sharded
from fedjax_het.errors import InputError

LAYOUTS = ("vmapped", "chunked", "sharded")
LOWERED = "cuda"  # the topology for which programs are lowered and not compiled
# (packages, any of which suffices; the extra that installs the first)
_COMPILERS = {"tpu": (["libtpu"], "tpu"), "cuda": (["jax_cuda13_plugin", "jax_cuda12_plugin"], "cuda13")}
_ADVICE = f"Write a TPU slice such as v5e:2x2, a number of H100 GPUs such as h100:4, or {LOWERED}."

# The text form of the message that describes a GPU to XLA's compiler; sizes from NVIDIA's data sheet of the H100 SXM.
_H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  memory_bandwidth: 3350000000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 85899345920
  cuda_compute_capability { major: 9 minor: 0 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 8 }
runtime_version { major: 12 minor: 9 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


class Target(NamedTuple):
    """The devices that programs are compiled for; none where programs are only lowered."""

    platform: str  # "tpu" or "cuda", as JAX names it in `lowering_platforms`
    devices: tuple[Any, ...] = ()

    @property
    def traced_platform(self) -> str:
        """The platform as `tracing_for` names it."""
        return "gpu" if self.platform == "cuda" else self.platform

    def layout(self, name: str, chunk: int | None = None) -> Layout:
        """A layout by its name, with at most `chunk` clients at a time on each device."""
        if name == "sharded":
            return sharded(Mesh(np.array(self.devices or jax.devices()), (AXIS,)), chunk)
        return {"vmapped": Layout(chunk), "chunked": chunked(chunk or 2)}[name]

    def place(self, arguments: Any, layout: Layout) -> Any:
        """Return the shapes of a program's arguments on these devices; a layout with a mesh has placed them already."""
        if layout.mesh:
            return arguments
        sharding = SingleDeviceSharding(self.devices[0])
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), arguments)


def find_target(topology: str) -> Target:
    """Load the compiler for devices that need not be present.

    Args:
        topology: A TPU slice, such as "v5e:2x2", or a number of GPUs of one host, such as "h100:4". "cuda" needs no
            compiler: programs are only lowered.

    Raises:
        InputError: The compiler is not installed, or does not know the topology.
    """
    if topology == LOWERED:
        return Target("cuda")
    name, _, size = topology.partition(":")
    if name == "h100" and size.isdecimal() and int(size):
        return _load_compiler("cuda", topology, {"target_config": _H100, "topology": f"1x1x{size}"})
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # there is no metadata server to ask
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # the compiler needs no chip for itself
    return _load_compiler("tpu", topology, {"chips_per_host_bounds": (1, 1, 1)} if size == "1x1" else {})


def _load_compiler(platform: str, topology: str, options: Mapping[str, Any]) -> Target:
    packages, extra = _COMPILERS[platform]
    if not any(map(importlib.util.find_spec, packages)):
        raise InputError(
            f"--topology: no compiler for '{topology}' is installed: pip install \"fedjax-het[{extra}]\". {_ADVICE}"
        )
    try:
        found = topologies.get_topology_desc(topology, platform=platform, **options)
    except Exception as error:  # of kinds that the compilers do not document
        raise InputError(f"--topology: '{topology}' is unknown ({first_line(error)}). {_ADVICE}") from error
    return Target(platform, tuple(found.devices))


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
