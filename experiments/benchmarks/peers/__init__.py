"""The contenders of the benchmark: fedjax_het, and other simulators of a round of FedAvg on one machine.

A contender is a module here with `prepare(work, settings) -> Contender`. Each runs in a process of its own, so that no
two frameworks ever share one, and computes only between a question and its answer (`worker.py` and `process.py`).
To add one: write the file, add the row. This module imports no framework: it is read in every contender's process.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ..workloads import ADAPTED, LAYERED, WORKLOADS, Weights

OURS, MATMUL = "fedjax_het", "matmul"
PRECISIONS = ("float32", "tf32", "bfloat16")


class ContenderSettings(NamedTuple):
    """Settings of the benchmark command for all contenders."""

    cores: int
    layout: str = ""  # layout of fedjax_het; "": sharded(cores, 1) on a CPU and vmapped elsewhere
    precision: str = "float32"  # of matrix products on a GPU: one of PRECISIONS


class Contender(NamedTuple):
    """A workload that is ready to run: compiled, with its data in place.

    round: runs one round from the weights of the last, and returns when the new ones are computed.
    weights: returns the server's model.
    close: ends processes that it started.
    facts: returns further measurements after the rounds: peak device memory, seconds to compile.
    """

    round: Callable[[], None]
    weights: Callable[[], Weights]
    close: Callable[[], None] = lambda: None
    facts: Callable[[], dict[str, Any]] = dict


class UnusableError(Exception):
    """Raised by a contender that is installed but cannot run here; the message gives the reason and a remedy."""


class ContenderInfo(NamedTuple):
    title: str
    module: str  # below experiments.benchmarks.peers
    packages: tuple[str, ...]  # their versions are reported; all are needed
    install: str = ""
    works: tuple[str, ...] = tuple(WORKLOADS)  # the workloads that it is written for


_TORCH = "pip install torch peft"
PEERS: Mapping[str, ContenderInfo] = MappingProxyType(
    {
        "torch_lean": ContenderInfo("PyTorch, lean loop (channels last)", "torch_lean", ("torch",), _TORCH),
        "torch_graph": ContenderInfo("PyTorch, lean loop as a CUDA graph", "torch_graph", ("torch",), _TORCH),
        "torch_processes": ContenderInfo(
            "PyTorch, lean loop, one process per core", "torch_processes", ("torch",), _TORCH
        ),
        "torch_vmap": ContenderInfo(
            "PyTorch, torch.func.vmap over clients", "torch_vmap", ("torch",), _TORCH, (*LAYERED, *ADAPTED)
        ),
        "pfl_research": ContenderInfo(
            "pfl-research, one process per core",
            "pfl_research",
            ("pfl", "torch"),
            "pip install pfl torch, in an environment of its own (absl-py below 2), and --python=pfl_research=...",
            works=tuple(LAYERED),
        ),
        "pfllib": ContenderInfo(
            "PFLlib, one client after another",
            "pfllib",
            ("torch", "h5py", "scikit-learn", "matplotlib"),
            "pip install torch h5py scikit-learn matplotlib; git clone https://github.com/TsingZ0/PFLlib; and "
            "PYTHONPATH=PFLlib/system",
            works=tuple(name for name in WORKLOADS if name not in ADAPTED),
        ),
        "flower": ContenderInfo(
            "Flower simulation (Ray, one actor per core)",
            "flower",
            ("flwr", "ray", "torch"),
            'pip install "flwr[simulation]" torch',
            works=tuple(LAYERED),
        ),
        "blazefl": ContenderInfo(
            "BlazeFL, one thread per core",
            "blazefl",
            ("blazefl", "torch"),
            "pip install blazefl numpy, in an environment with a free-threaded Python, and --python=blazefl=...",
        ),
        "fedjax": ContenderInfo(
            "FedJAX, jit backend",
            "fedjax",
            ("fedjax", "jax", "jaxlib"),
            "pip install fedjax, in an environment of its own with an older JAX (0.4.30), and --python=fedjax=...",
            works=tuple(LAYERED),
        ),
    }
)
CONTENDERS: Mapping[str, ContenderInfo] = MappingProxyType(
    {
        OURS: ContenderInfo("fedjax_het", "ours", ("fedjax-het", "jax", "jaxlib")),
        MATMUL: ContenderInfo("the machine's float32 matmul rate", "matmul", ("jax", "jaxlib")),
        **PEERS,
    }
)
