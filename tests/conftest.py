"""Tests see several CPU devices, so that sharded layouts are real; `tests` is importable from anywhere."""

import os
import sys
from pathlib import Path

import jax
import jaxlib

# Most of the suite's time is compilation of small programs: let LLVM try less. HLO passes, so layouts, are as ever.
FLAGS = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
if jaxlib.__version__.startswith("0.10."):  # XLA ends the process over a flag that it does not know
    # One kernel a fusion without the MLIR emitters: half the time and a sixth of the memory mappings a program.
    FLAGS += ["--xla_cpu_use_fusion_emitters=false"]
os.environ["XLA_FLAGS"] = " ".join([*FLAGS, os.environ.get("XLA_FLAGS", "")])

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
jax.config.update("jax_num_cpu_devices", 4)

MAPPINGS = Path("/proc/self/maps")
MOST_MAPPINGS = 30_000  # Linux allows 65,530 a process, and a program that needs one more crashes in the compiler


def pytest_runtest_teardown(item, nextitem):
    """Compiled programs live as long as the process: let go of them before their memory mappings run out."""
    if MAPPINGS.exists() and len(MAPPINGS.read_bytes().splitlines()) > MOST_MAPPINGS:
        jax.clear_caches()
