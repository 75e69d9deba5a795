"""Quick compilation: most of the time of a test is the compiler's."""

import os

import jaxlib

# Let LLVM try less. HLO passes, so layouts, are as ever.
_FLAGS = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
HAS_EMITTERS_FLAG = jaxlib.__version__.startswith("0.10.")  # XLA ends the process over a flag that it does not know
if HAS_EMITTERS_FLAG:
    # One kernel a fusion without the MLIR emitters: half the time and a sixth of the memory mappings a program.
    _FLAGS += ["--xla_cpu_use_fusion_emitters=false"]


def use_quick_compilation() -> None:
    """Call this before anything is computed; flags that the environment sets take precedence."""
    os.environ["XLA_FLAGS"] = " ".join([*_FLAGS, os.environ.get("XLA_FLAGS", "")])
