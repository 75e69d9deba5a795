"""Who takes part in the benchmark: ours, and what else simulates a round of FedAvg on one machine.

A contender is a module here with `prepare(work, settings) -> Contender`. Each runs in a process of its own, so that no
two frameworks ever share one, and computes only between a question and its answer (`worker.py` and `process.py`).
To add one: write the file, add the row. This module imports no framework: it is read in every contender's process.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ..workloads import Weights

OURS, MATMUL = "fedjax_het", "matmul"
PRECISIONS = ("float32", "tf32", "bfloat16")


class Settings(NamedTuple):
    """What the command decides for everybody."""

    cores: int
    layout: str = ""  # ours alone; "" is sharded(cores, 1) on a CPU and vmapped elsewhere
    conv: str = "auto"  # ours alone
    precision: str = "float32"  # of products, where a GPU is at hand: one of PRECISIONS


class Contender(NamedTuple):
    """A work that is ready to run: compiled, its data where the rounds read them.

    round: one whole round from the weights of the last; it returns when they are there.
    weights: the server's model.   close: ends processes of its own.
    facts: what else it knows of itself after its rounds: the peak of the device's memory, seconds to compile.
    """

    round: Callable[[], None]
    weights: Callable[[], Weights]
    close: Callable[[], None] = lambda: None
    facts: Callable[[], dict[str, Any]] = dict


class Unusable(Exception):
    """What is installed cannot run here; the text says why, and what would."""


class Entry(NamedTuple):
    title: str
    module: str  # below experiments.benchmarks.peers
    packages: tuple[str, ...]  # whose versions are reported; without the first it cannot run
    install: str = ""


_TORCH = "pip install torch"
PEERS: Mapping[str, Entry] = MappingProxyType(
    {
        "torch_plain": Entry("PyTorch, plain loop (DataLoader, deepcopy)", "torch_plain", ("torch",), _TORCH),
        "torch_lean": Entry("PyTorch, lean loop (channels last)", "torch_lean", ("torch",), _TORCH),
        "torch_graph": Entry("PyTorch, lean loop as a CUDA graph", "torch_graph", ("torch",), _TORCH),
        "torch_processes": Entry("PyTorch, lean loop, a process a core", "torch_processes", ("torch",), _TORCH),
        "torch_vmap": Entry("PyTorch, torch.func.vmap over clients", "torch_vmap", ("torch",), _TORCH),
        "pfl_research": Entry(
            "pfl-research, a process a core",
            "pfl_research",
            ("pfl", "torch"),
            "pip install pfl torch, in an environment of its own (absl-py below 2), and --python=pfl_research=...",
        ),
        "flower": Entry(
            "Flower simulation (Ray, an actor a core)",
            "flower",
            ("flwr", "ray", "torch"),
            'pip install "flwr[simulation]" torch',
        ),
        "fedjax": Entry(
            "FedJAX, jit backend",
            "fedjax",
            ("fedjax", "jax", "jaxlib"),
            "pip install fedjax, in an environment of its own with an older JAX (0.4.30), and --python=fedjax=...",
        ),
    }
)
CONTENDERS: Mapping[str, Entry] = MappingProxyType(
    {
        OURS: Entry("fedjax_het", "ours", ("fedjax-het", "jax", "jaxlib")),
        MATMUL: Entry("the machine's float32 matmul rate", "matmul", ("jax", "jaxlib")),
        **PEERS,
    }
)
