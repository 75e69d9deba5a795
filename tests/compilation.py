"""Quick compilation, which takes most of the time of a test, and the choice of compiled kernels."""

import os

import jaxlib
import pytest

# Less LLVM optimization, on one thread per program; HLO passes and layouts do not change.
_FLAGS = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
]
HAS_EMITTERS_FLAG = jaxlib.__version__.startswith("0.10.")  # XLA ends the process for an unknown flag
if HAS_EMITTERS_FLAG:
    # Without the MLIR emitters: one kernel per fusion, half the time and a sixth of the memory mappings per program.
    _FLAGS += ["--xla_cpu_use_fusion_emitters=false"]


def use_quick_compilation() -> None:
    """Call this before anything is computed; flags that the environment sets take precedence."""
    os.environ["XLA_FLAGS"] = " ".join([*_FLAGS, os.environ.get("XLA_FLAGS", "")])


def choose_kernel(kind, module, monkeypatch):
    """Skip a test with the "kernel" where the module has none; otherwise let the module compute without it."""
    if kind == "no kernel":
        monkeypatch.setattr(module, "explain_missing_kernel", lambda: "it was not compiled")
    elif reason := module.explain_missing_kernel():
        pytest.skip(reason)
