"""The platform that programs are traced and compiled for: that of JAX's default devices, or a named one.

Convolutions, native kernels, block sizes and layouts depend on it. To compile for a TPU on a machine without one, the
program is traced inside `tracing_for("tpu")`.
"""

from contextlib import AbstractContextManager

import jax

_named = jax.make_user_context(None)


def target_platform() -> str:
    """The platform that is traced for, "cpu", "gpu" or "tpu", as `jax.default_backend` names them."""
    return _named.value or jax.default_backend()


def tracing_for(platform: str) -> AbstractContextManager:
    """A context in which programs are traced for a platform, whichever devices this process has.

    What JAX has traced for another platform is not used again in it.
    """
    return _named(platform)
