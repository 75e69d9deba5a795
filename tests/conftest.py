"""Tests see several CPU devices, so that sharded layouts are real; `tests` is importable from anywhere."""

import os
import sys
from pathlib import Path

# Most of the suite's time is compilation of small programs: let LLVM try less. HLO passes, so layouts, are as ever.
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true " + os.environ.get("XLA_FLAGS", "")
)

import jax

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
jax.config.update("jax_num_cpu_devices", 4)
